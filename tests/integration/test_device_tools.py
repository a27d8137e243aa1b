"""`farm device pull|screenshot|install|adb`: reaching into one phone, with the phone's own words when it refuses."""

import json
import re

import pytest

pytestmark = pytest.mark.farm("galaxy-note20")


@pytest.fixture
def device(farm):
    return farm.status()["devices"][0]["name"]


def test_a_pulled_file_arrives_whole(farm, device, tmp_path):
    content = bytes(range(256)) * 9000
    (tmp_path / "sent").write_bytes(content)
    assert farm.adb("push", str(tmp_path / "sent"), "/data/local/tmp/sent").returncode == 0
    assert farm.farm("device", "pull", device, "/data/local/tmp/sent", str(tmp_path / "back")).returncode == 0
    assert (tmp_path / "back").read_bytes() == content


def test_facts_are_adbs(farm, device):
    facts = json.loads(farm.farm("device", "adb", device, "--json").stdout)
    assert facts["model"] == "SM-N9810"
    assert "shell_v2" in facts["features"]


def test_times_are_ones_own_or_say_whose_they_are(farm, device):
    shown = farm.farm("device", "show", device).stdout
    assert re.search(r"^since +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d$", shown, re.MULTILINE)
    assert "\nlately (UTC):\n" in farm.farm("explain", "device", device).stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("pull", "{}", "/absent", "{out}"), "No such file or directory"),
        (("screenshot", "{}", "{out}"), "screencap"),  # a virtual phone has no screen
    ],
)
def test_a_refusal_is_the_phones_own_words(farm, device, tmp_path, arguments, said):
    done = farm.farm("device", *(word.format(device, out=tmp_path / "out") for word in arguments))
    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_what_is_no_package_is_refused_before_the_phone_is_asked(farm, device):
    done = farm.farm("device", "install", device, "/etc/hostname")
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, "error: /etc/hostname is no .apk file")
    assert "unzip -l" in done.stderr


def test_a_file_that_cannot_be_written_is_refused_before_the_phone_is_asked(farm, device, tmp_path):
    for words in (("screenshot", device), ("pull", device, "/system/build.prop")):
        done = farm.farm("device", *words, str(tmp_path / "absent" / "out"))
        assert (done.returncode, "there is no folder" in done.stderr) == (2, True)
