"""Every command that only looks prints text for people, and one JSON document with `--json`."""

import json

import psutil
import pytest

from tests.support.whole_farm import phones

LOOKING = [
    ("status",),
    ("device", "list"),
    ("device", "show", "{}"),
    ("bundle", "list"),
    ("bundle", "show", "virtual"),
    ("bundle", "verify", "virtual"),
    ("alias", "list"),
    ("job", "list"),
    ("lease", "list"),
    ("forward", "list"),
    ("explain", "device", "{}"),
    ("explain", "key", "android"),
    ("usage", "--since", "1h"),
    ("usage", "--by", "device"),
    ("reservation", "list"),
    ("doctor",),
]

pytestmark = pytest.mark.farm("galaxy-s9", anywhere=True)


@pytest.mark.parametrize("command", LOOKING, ids=" ".join)
def test_it_is_told_in_text_and_as_json(farm, command):
    words = [word.format(phones(farm)[0].name) for word in command]
    text, document = farm.farm(*words), farm.farm(*words, "--json")
    assert (text.returncode, document.returncode) == (0, 0), (text, document)
    assert text.stdout.strip() or text.stderr.strip()  # "no jobs" is no data
    assert isinstance(json.loads(document.stdout), dict)


def test_the_doctor_judges_what_the_port_is_bound_to(farm):
    tracker = farm.status()["tracker"]
    assert (tracker["bound"], psutil.Process(tracker["pid"]).ppid()) == ("127.0.0.1", farm.status()["pid"])
    findings = json.loads(farm.farm("doctor", "--json").stdout)["findings"]
    found = [row["detail"] for row in findings if row["check"] == "exposure"]
    assert f"tvm.host 127.0.0.1 port {tracker['port']}: this host only" in found
