"""What people type at a farm with one phone: looking, sharing it, reaching into it."""

import getpass
import json
import re

import psutil
import pytest

from farm.common.errors import ExitCode
from tests.support.whole_farm import Story, answer, phones, refused

pytestmark = pytest.mark.farm("galaxy-note20")


@pytest.fixture
def name(farm):
    return phones(farm)[0].name


def test_the_doctor_judges_what_the_port_is_bound_to(farm):
    tracker = farm.status()["tracker"]
    assert (tracker["bound"], psutil.Process(tracker["pid"]).ppid()) == ("127.0.0.1", farm.status()["pid"])
    findings = answer(farm.farm("doctor", "--json"))["findings"]
    found = [row["detail"] for row in findings if row["check"] == "exposure"]
    assert f"tvm.host 127.0.0.1 port {tracker['port']}: this host only" in found


def reserve(farm, *words, on="android", user="ci"):
    return farm.farm("reservation", "add", "--on", on, "--user", user, *words)


def test_a_reservation_from_its_beginning_to_its_end(farm, name):
    story = Story(farm)
    added = reserve(farm, "--for", "2h", "--from", "+10m", "--note", "nightly", on=name)
    assert added.returncode == 0, added
    assert name in added.stdout
    (row,) = answer(farm.farm("reservation", "list", "--json"))["reservations"]
    assert (row["selector"], row["user"], row["note"]) == (name, "ci", "nightly")
    assert "nightly" in farm.farm("reservation", "list").stdout
    assert farm.farm("reservation", "remove", row["id"]).stdout == f"removed {row['id']}\n"
    assert answer(farm.farm("reservation", "list", "--json"))["reservations"] == []
    refused(farm.farm("reservation", "remove", row["id"]), ExitCode.USAGE, row["id"])
    story.read()
    kinds = story.kinds(rooms="reservation")
    assert kinds.count("reservation.added") == kinds.count("reservation.removed") == 1


def test_a_reserved_phone_is_explained_to_others(farm, name):
    added = answer(reserve(farm, "--for", "1h", "--json", on=name))
    explained = farm.farm("explain", "key", name).stdout
    assert "reserved" in explained
    assert "ci" in explained
    farm.farm("reservation", "remove", added["reservation"]["id"])


def test_a_key_that_no_phone_has_is_explained_with_its_selector_or_what_is_near(farm):
    farm.farm("alias", "set", "flagship", "soc=sm9999")
    explained = farm.farm("explain", "key", "flagship").stdout
    farm.farm("alias", "remove", "flagship")
    assert explained.startswith("flagship is soc=sm9999: no phone matches soc=sm9999: ")
    explained = farm.farm("explain", "key", "andriod")
    assert explained.returncode == ExitCode.NO_PHONE
    assert "no phone matches andriod: nearest is android" in explained.stdout


@pytest.mark.parametrize(
    ("on", "user", "words", "said"),
    [
        ("=", "ci", ("--for", "2h"), "selector term"),
        ("android", " ", ("--for", "2h"), "for one user"),
        ("android", "ci", ("--for", "1h", "--from", "2020-01-01"), "over already"),
    ],
)
def test_what_is_no_reservation_is_one_clear_line(farm, on, user, words, said):
    refused(reserve(farm, *words, on=on, user=user), ExitCode.USAGE, said)


def test_nothing_cannot_be_reserved_and_what_is_near_is_said(farm):
    """It was, with a warning: a mistyped name took effect when a phone got it."""
    refused(reserve(farm, "--for", "1m", on="andriod"), ExitCode.NO_PHONE, "nearest is android")


def test_several_reservations_go_at_once_and_what_is_gone_is_told_even_when_the_next_one_is_wrong(farm):
    starts = ("+1h", "+2h", "+3h")
    first, second, third = (
        answer(reserve(farm, "--for", "1m", "--from", start, "--json"))["reservation"]["id"] for start in starts
    )
    assert farm.farm("reservation", "remove", first, second).stdout == f"removed {first}\nremoved {second}\n"
    mistyped = farm.farm("reservation", "remove", third, "nosuch", "--json")
    refused(mistyped, ExitCode.USAGE, "'nosuch'")
    assert [row["id"] for row in json.loads(mistyped.stdout)["reservations"]] == [third]


def test_use_is_shown_by_user_and_device(farm, name):
    done = farm.farm("shell", "--on", name, "--", "true")
    assert done.returncode == 0, done
    (row,) = answer(farm.farm("usage", "--since", "1h", "--json"))["usage"]
    assert (row["name"], row["leases"], row["jobs"]) == (getpass.getuser(), 1, 1)
    assert row["held_s"] > 0
    head, line, *_ = farm.farm("usage", "--since", "1h", "--by", "device").stdout.splitlines()
    assert head.split() == ["DEVICE", "HELD", "CLEANING", "SHARE", "LEASES", "JOBS"]
    assert line.startswith(name)
    (job,) = answer(farm.farm("job", "list", "--json"))["jobs"]
    assert job["id"] in farm.farm("explain", "job", job["id"]).stdout
    refused(farm.farm("usage", "--since", "2999-01-01"), ExitCode.USAGE, "has not begun")


def test_a_pulled_file_arrives_whole(farm, name, tmp_path):
    content = bytes(range(256)) * 9000
    (tmp_path / "sent").write_bytes(content)
    assert farm.adb("push", str(tmp_path / "sent"), "/data/local/tmp/sent").returncode == 0
    assert farm.farm("device", "pull", name, "/data/local/tmp/sent", str(tmp_path / "back")).returncode == 0
    assert (tmp_path / "back").read_bytes() == content


def test_facts_are_adbs(farm, name):
    facts = answer(farm.farm("device", "adb", name, "--json"))
    assert facts["model"] == "SM-N9810"
    assert "shell_v2" in facts["features"]


def test_times_are_ones_own_or_say_whose_they_are(farm, name):
    shown = farm.farm("device", "show", name).stdout
    assert re.search(r"^since +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d$", shown, re.MULTILINE)
    assert "\nlately (UTC):\n" in farm.farm("explain", "device", name).stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("pull", "{}", "/absent", "{out}"), "No such file or directory"),
        (("screenshot", "{}", "{out}"), "screencap"),  # a virtual phone has no screen
    ],
)
def test_a_refusal_is_the_phones_own_words(farm, name, tmp_path, arguments, said):
    done = farm.farm("device", *(word.format(name, out=tmp_path / "out") for word in arguments))
    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_what_is_no_package_is_refused_before_the_phone_is_asked(farm, name):
    done = farm.farm("device", "install", name, "/etc/hostname")
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, "error: /etc/hostname is no .apk file")
    assert "unzip -l" in done.stderr


def test_a_file_that_cannot_be_written_is_refused_before_the_phone_is_asked(farm, name, tmp_path):
    for words in (("screenshot", name), ("pull", name, "/system/build.prop")):
        done = farm.farm("device", *words, str(tmp_path / "absent" / "out"))
        assert (done.returncode, "there is no folder" in done.stderr) == (2, True)
