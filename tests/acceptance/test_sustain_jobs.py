"""Jobs of kind sustain on a virtual phone whose physics run many times as fast: it becomes warm."""

import json
import os
import sys
import tempfile
from pathlib import Path

import pytest

from farm.zoo import small_cnn
from tests.support.whole_farm import phones, until, until_ready

NAME = "sm-g9600"
PRINTS_3_W = "import time\nwhile True: print(time.time(), 3.0, sep=chr(44), flush=True); time.sleep(0.005)"
METER = Path(tempfile.gettempdir()) / f"farm-test-sustained-meter-{os.getpid()}"
pytestmark = pytest.mark.farm("galaxy-s9", config=f'[power.meter]\n"{NAME}" = ["sh", "{METER}"]\n')

SPEED = 100  # ten seconds are a quarter of an hour
MODEL = "small.onnx", small_cnn().SerializeToString(deterministic=True)


@pytest.fixture(scope="module")
def farm(whole):
    (phone,) = phones(whole)
    whole.lab.plug(phone.nickname)
    until_ready(whole)
    whole.lab.battery(phone.nickname, 80)
    METER.write_text(f"exec {sys.executable} -c '{PRINTS_3_W}'\n")
    yield whole
    METER.unlink(missing_ok=True)


def ran(farm, model, *options):
    done = farm.farm("sustain", model, "--on", "android", *options, "--max-attempts", "1", "--json", timeout_s=170)
    assert done.returncode == 0, done.stdout + done.stderr
    (result,) = json.loads(done.stdout)["results"]
    return result


def test_a_phone_becomes_warm(farm, model):
    (phone,) = phones(farm)
    farm.lab.battery(phone.nickname, 80, charging=True)
    farm.lab.fault(phone.nickname, "physics", speed=SPEED)
    try:
        result = ran(farm, model, "--for", "10s", "--threads", "1")
    finally:
        farm.lab.fault(phone.nickname, "physics_off")
        farm.lab.cool(phone.nickname)
        farm.lab.battery(phone.nickname, 80)
    assert result["max_abs_error"] < 1e-4
    assert len(result["buckets"]) >= 8
    assert result["buckets"][-1]["celsius"] > result["buckets"][0]["celsius"]
    assert (result["stopped"], result["certificate"]["placement"]) == ("", "1 thread")
    # The physics charge its battery.
    assert [each for each in result["certificate"]["notes"] if "charges its battery: its power meter" in each]
    assert result["plateau"] is None or result["plateau"]["busy_w"] is None
    lines = json.loads(farm.farm("history", model, "--json").stdout)["lines"]
    assert {(each["metric"], each["method"]) for each in lines} >= {
        ("latency at the end", "for 10s"), ("slowdown", "for 10s"),
    }  # fmt: skip
    printed = farm.farm("job", "show", result["job"]).stdout
    assert "THROTTLED" in printed
    assert "median of each 1 s," in printed
    assert "a run below ten minutes" in printed
    assert "\n1 s " in printed  # a row


def test_two_builds_are_compared_in_the_first_minute_and_at_the_end(farm, model, tmp_path):
    a = ran(farm, model, "--for", "5s")
    b = ran(farm, model, "--for", "5s", "--precision", "float16")
    found = json.loads(farm.farm("compare", a["job"], b["job"], "--json").stdout)
    assert found["first"]["ratio"] == pytest.approx(b["buckets"][0]["median_ms"] / a["buckets"][0]["median_ms"])
    assert "WITH IDLE" in farm.farm("job", "show", a["job"]).stdout
    # A stall of the host may leave stretches without power.
    assert {row["busy_w"] for row in a["buckets"]} - {None} == {3.0}, a["certificate"]["notes"]
    written = farm.farm("job", "output", a["job"], "-o", tmp_path / "run.pftrace")
    assert written.returncode == 0, written.stderr
    assert b"temperature" in (tmp_path / "run.pftrace").read_bytes()
    printed = farm.farm("compare", a["job"], b["job"])
    assert printed.returncode == 0, printed.stderr
    assert "first 0.5 s" in printed.stdout
    assert "A W" in printed.stdout


def test_a_hot_battery_ends_it_with_a_partial_result(farm, model):
    (phone,) = phones(farm)
    until_ready(farm)
    submitted = farm.farm("sustain", model, "--on", "android", "--for", "60s", "--detach", "--json")
    assert submitted.returncode == 0, submitted.stderr
    (job,) = json.loads(submitted.stdout)["jobs"]
    until(lambda: "running, " in farm.farm("logs", job["id"]).stdout)
    farm.lab.heat(phone.nickname, 37.0, battery_c=54.0)
    try:
        done = farm.farm("watch", job["id"])
    finally:
        farm.lab.cool(phone.nickname)
    assert done.returncode == 0, done.stdout + done.stderr
    printed = farm.farm("job", "show", job["id"]).stdout
    assert "the battery reached 5" in printed
