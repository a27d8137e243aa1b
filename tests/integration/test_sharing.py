"""Sharing a farm by command: reservations, use, and why something waits."""

import getpass
import json

import pytest

from farm.common.errors import ExitCode
from tests.support.whole_farm import Story, phones, refused

pytestmark = pytest.mark.farm("galaxy-s9")


def test_a_reservation_from_its_beginning_to_its_end(farm):
    name, story = phones(farm)[0].name, Story(farm)
    added = farm.farm(
        "reservation", "add", "--on", name, "--user", "ci", "--for", "2h", "--from", "+10m", "--note", "nightly"
    )
    assert added.returncode == 0, added
    assert name in added.stdout
    (row,) = json.loads(farm.farm("reservation", "list", "--json").stdout)["reservations"]
    assert (row["selector"], row["user"], row["note"]) == (name, "ci", "nightly")
    assert "nightly" in farm.farm("reservation", "list").stdout
    removed = farm.farm("reservation", "remove", row["id"])
    assert removed.stdout == f"removed {row['id']}\n"
    assert json.loads(farm.farm("reservation", "list", "--json").stdout) == {"reservations": []}
    refused(farm.farm("reservation", "remove", row["id"]), ExitCode.USAGE, row["id"])
    story.read()
    kinds = story.kinds(rooms="reservation")
    assert kinds.count("reservation.added") == kinds.count("reservation.removed") == 1


def test_a_reserved_phone_is_explained_to_others(farm):
    name = phones(farm)[0].name
    added = json.loads(farm.farm("reservation", "add", "--on", name, "--user", "ci", "--for", "1h", "--json").stdout)
    explained = farm.farm("explain", "key", name)
    assert "reserved" in explained.stdout
    assert "ci" in explained.stdout
    farm.farm("reservation", "remove", added["reservation"]["id"])


def test_of_a_key_set_by_hand_that_no_phone_has_its_selector_is_explained(farm):
    farm.farm("alias", "set", "flagship", "soc=sm9999")
    explained = farm.farm("explain", "key", "flagship").stdout
    farm.farm("alias", "remove", "flagship")
    assert explained.startswith("flagship is soc=sm9999: no phone matches soc=sm9999: ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--on", "android", "--user", "ci", "--for", "two"), "'two' is no duration"),
        (("--on", "android", "--user", "ci", "--for", "2h", "--from", "soonish"), "'soonish' is no time"),
        (("--on", "=", "--user", "ci", "--for", "2h"), "selector term"),
        (("--on", "android", "--user", " ", "--for", "2h"), "for one user"),
        (("--on", "android", "--user", "ci", "--for", "1h", "--from", "2020-01-01"), "over already"),
    ],
)
def test_what_is_no_reservation_is_one_clear_line(farm, arguments, said):
    refused(farm.farm("reservation", "add", *arguments), ExitCode.USAGE, said)


def test_nothing_cannot_be_reserved_and_what_is_near_is_said(farm):
    """It was, with a warning: a mistyped name took effect when a phone got it."""
    added = farm.farm("reservation", "add", "--on", "andriod", "--user", "ci", "--for", "1m")
    refused(added, ExitCode.NO_PHONE, "nearest is android")


def test_several_reservations_go_at_once(farm):
    ids = []
    for start in ("+1h", "+2h", "+3h", "+4h"):
        words = ("--on", "android", "--user", "ci", "--for", "1m", "--from", start, "--json")
        ids.append(json.loads(farm.farm("reservation", "add", *words).stdout)["reservation"]["id"])
    assert farm.farm("reservation", "remove", *ids[:2]).stdout == "".join(f"removed {each}\n" for each in ids[:2])
    # What is gone is told even when the next one is wrong.
    mistyped = farm.farm("reservation", "remove", ids[2], "nosuch")
    refused(mistyped, ExitCode.USAGE, "'nosuch'")
    assert mistyped.stdout == f"removed {ids[2]}\n"
    mistyped = farm.farm("reservation", "remove", ids[3], "nosuch", "--json")
    refused(mistyped, ExitCode.USAGE, "'nosuch'")
    assert [row["id"] for row in json.loads(mistyped.stdout)["reservations"]] == [ids[3]]


def test_a_key_of_no_phone_is_explained_with_what_is_near(farm):
    for key, said in (("andriod", "andriod: nearest is android"), ("pool=lba", "pool=lba")):
        explained = farm.farm("explain", "key", key)
        assert explained.returncode == ExitCode.NO_PHONE
        assert f"no phone matches {said}" in explained.stdout


def test_use_is_shown_by_user_and_device(farm):
    name = phones(farm)[0].name
    done = farm.farm("shell", "--on", name, "--", "true")
    assert done.returncode == 0, done
    by_user = json.loads(farm.farm("usage", "--since", "1h", "--json").stdout)
    (row,) = by_user["usage"]
    assert (row["name"], row["leases"], row["jobs"]) == (getpass.getuser(), 1, 1)
    assert row["held_s"] > 0
    text = farm.farm("usage", "--since", "1h", "--by", "device").stdout
    assert text.splitlines()[0].split() == ["DEVICE", "HELD", "CLEANING", "SHARE", "LEASES", "JOBS"]
    assert text.splitlines()[1].startswith(name)
    (job,) = json.loads(farm.farm("job", "list", "--json").stdout)["jobs"]
    assert job["id"] in farm.farm("explain", "job", job["id"]).stdout
    refused(farm.farm("usage", "--since", "yesterday"), ExitCode.USAGE, "'yesterday' is no time")
    refused(farm.farm("usage", "--since", "2999-01-01"), ExitCode.USAGE, "has not begun")
