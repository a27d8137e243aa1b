"""Jobs of kinds energy and sustain by a virtual phone's power rails, while the cable feeds it, and without rails."""

import json
import os
import re
import signal
import time
from contextlib import suppress

import pytest

from farm.simulation import physics
from farm.simulation.process_tree import read_tree
from tests.support.tunable import dense_onnx
from tests.support.whole_farm import Story, answer, phones, until, until_ready

VIRTUAL = "virtual phones time this host"
pytestmark = pytest.mark.farm("galaxy-a55")
MODEL = "small.onnx", dense_onnx(256, 4)


@pytest.fixture(scope="module")
def farm(whole):
    phone = phones(whole)[0]
    whole.lab.battery(phone.nickname, 80)
    whole.lab.fault(phone.nickname, "physics")
    until_ready(whole)
    return whole


def rails(farm, mode):
    farm.lab.fault(phones(farm)[0].nickname, "power_rails", mode=mode)


def energy(farm, model, *words):
    return farm.farm("energy", model, "--on", phones(farm)[0].name, "--half-width", "0.5", *words, timeout_s=250)


def test_a_phone_without_rails_that_serve_needs_its_gauge(farm, model):
    rails(farm, "none")
    done = energy(farm, model)
    assert done.returncode == 1
    assert "no power rails that serve (its perfetto names none)" in " ".join((done.stdout + done.stderr).split())
    assert "its own fuel gauge sees only what the battery gives: it gets power by usb" in done.stdout + done.stderr


def test_rails_tell_the_joules_while_the_cable_feeds_the_phone(farm, model):
    rails(farm, "there")
    done = energy(farm, model, "--measure", "80", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    (result,) = json.loads(done.stdout)["results"]
    found, certificate = result["energy"], result["certificate"]
    assert found is not None, result["unresolved"]
    by_name = {each["subsystem"]: each for each in certificate["meter"]["rails"]}
    assert certificate["meter"]["source"] == "power rails"
    assert certificate["meter"]["period_s"] == pytest.approx(0.25, abs=0.2)
    assert [name for name, each in by_name.items() if each["counted"]] == ["CPU", "GPU"]
    assert any(note.startswith("by power rails: what CPU, GPU") for note in certificate["notes"])
    # What is drawn besides, by the screen and by the rail that feeds all, is not in it.
    assert found["idle_w"] == pytest.approx(physics.IDLE_CPU_W + physics.IDLE_GPU_W, rel=0.15)
    assert found["net_j"] == pytest.approx(by_name["CPU"]["net_j"], rel=0.01)
    assert by_name["Battery"]["net_j"] == pytest.approx(found["net_j"], rel=0.01)
    assert abs(by_name["Display"]["net_j"]) < 0.01 * found["net_j"]
    core_j = physics.WATTS_PER_CORE * found["inference_s"]
    assert core_j / 5 < found["net_j"] < core_j * 4
    assert found["low_j"] <= found["net_j"] <= found["high_j"]


def test_a_trace_that_is_killed_ends_the_attempt(farm, model):
    error = broken_by(farm, model, lambda: kill_traces(farm))
    assert error["code"] == "gauge_failed"
    assert "its perfetto ended with 137 in the middle of the run" in error["message"]
    until_ready(farm)


def test_a_phone_that_is_unplugged_keeps_no_trace_running(farm, model):
    nickname = phones(farm)[0].nickname
    error = broken_by(farm, model, lambda: farm.lab.fault(nickname, "unplug"))
    assert error["fault"] == "phone"
    until(lambda: not traces(farm))
    farm.lab.fault(nickname, "plug")
    until_ready(farm)


def test_rails_tell_the_watts_of_a_sustained_run_while_the_cable_feeds_the_phone(farm, model):
    rails(farm, "there")
    run = Running(farm, model)
    begun_s, begun_busy_s = time.monotonic(), busy_s(farm)
    first = traces(farm)
    run.until_past(36)
    seconds, cores = time.monotonic() - begun_s, busy_s(farm) - begun_busy_s
    assert not set(first) & set(traces(farm)), "a trace lasts half a minute"
    result = run.result()
    meter = result["certificate"]["meter"]
    assert (meter["source"], result["certificate"]["notes"][-1]) == ("power rails", VIRTUAL)
    assert [each["subsystem"] for each in meter["rails"] if each["counted"]] == ["CPU", "GPU"]
    watts = [row["busy_w"] for row in result["buckets"] if row["start_s"] < 36]
    assert all(watts), "both traces tell it, and the time between them"
    true_w = physics.cpu_watts(cores / seconds, 1.0) + physics.IDLE_GPU_W
    assert sum(watts) / len(watts) == pytest.approx(true_w, rel=0.15)
    end = result["plateau"] or result["buckets"][-1]
    # A run's joules are watts times the mean of the runs, which a busy machine draws away from their median.
    mean_s = end["gross_j"] / end["busy_w"]
    assert end["median_ms"] / 2e3 <= mean_s <= result["seconds"] / end["count"]
    printed = farm.farm("job", "show", result["job"]).stdout
    assert re.search(r"POWER +WITH IDLE$", printed, re.MULTILINE)
    assert "by power rails: what CPU, GPU" in printed
    assert not traces(farm)


def test_a_trace_that_is_killed_costs_a_sustained_run_the_rest_of_its_watts(farm, model):
    rails(farm, "there")
    run = Running(farm, model)
    first = traces(farm)
    until(lambda: not set(first) & set(traces(farm)))
    until(lambda: traces(farm))
    kill_traces(farm)
    result = run.result()
    assert (result["stopped"], result["seconds"] >= 60) == ("", True)
    watts = [row["busy_w"] for row in result["buckets"]]
    assert watts[0]
    assert watts[-1] is None
    ended = "its perfetto ended with 137 in the middle of the run"
    assert [each for each in result["certificate"]["notes"] if "not known" in each] == [
        f"its power is not known to the end: the phone's power rails cannot be read: {ended}"
    ]


def test_a_phone_without_rails_runs_by_its_gauge_until_a_cable_feeds_it(farm, model):
    rails(farm, "none")
    nickname = phones(farm)[0].nickname
    farm.lab.fault(nickname, "charge", mode="suspend")
    run = Running(farm, model)
    run.until_past(24)
    farm.lab.fault(nickname, "charge", mode="start")
    result = run.result()
    certificate = result["certificate"]
    assert certificate["meter"]["source"] == "fuel gauge"
    notes = [each for each in certificate["notes"] if "gauge" in each]
    assert notes[0] == "by the fuel gauge and not by power rails: its perfetto names none"
    assert notes[1].startswith("its power is not known to the end: the phone's fuel gauge cannot tell its power: ")
    assert len(notes) == 2
    watts = [row["busy_w"] for row in result["buckets"]]
    assert watts[1] > physics.IDLE_CPU_W + physics.IDLE_GPU_W
    assert watts[-1] is None


def test_a_phone_that_nothing_measures_runs_with_a_note(farm, model):
    rails(farm, "none")
    result = Running(farm, model, "5s").result()
    certificate = result["certificate"]
    assert certificate["meter"] is None
    notes = [each for each in certificate["notes"] if "power" in each]
    assert len(notes) == 1
    assert notes[0].startswith("its power is not known: ")
    assert "no power rails that serve (its perfetto names none), and its own fuel gauge sees only" in notes[0]


class Running:
    """A sustained run that has begun."""

    def __init__(self, farm, model, length="1m"):
        self._farm, self.story = farm, Story(farm)
        words = ("sustain", model, "--on", phones(farm)[0].name, "--for", length, "--threads", "1", "--detach")
        [submitted] = answer(farm.farm(*words, "--max-attempts", "1", "--json"))["jobs"]
        self.job = submitted["id"]
        self.until_past(0)

    def until_past(self, seconds):
        """Wait for the first report from then on."""
        while True:
            step = self.story.until("job.progress", subject=self.job)["data"]["step"]
            words = step.split()
            if words[0] == "running," and float(words[1].rstrip("s")) >= seconds:
                return

    def result(self):
        done = self._farm.farm("watch", self.job, timeout_s=170)
        assert done.returncode == 0, done.stdout + done.stderr
        found = answer(self._farm.farm("job", "show", self.job, "--json"))
        return {**found["result"], "job": self.job}


def busy_s(farm):
    """Seconds of processors that the phone's processes have had, by the kernel."""
    tree = read_tree(farm.lab.phone(phones(farm)[0].nickname).pid)
    return sum(each.default_schedule_s + each.collected_s for each in tree if each.name not in {"init", "adbd"})


def broken_by(farm, model, cause):
    """The error of a job whose phone is broken in its first cycle."""
    rails(farm, "there")
    story = Story(farm)
    words = ("--measure", "80", "--max-attempts", "1", "--detach", "--json")
    [submitted] = answer(energy(farm, model, *words))["jobs"]
    story.until("job.progress", subject=submitted["id"], step="cycle 1 of 20")
    assert traces(farm)
    cause()
    story.until("job.failed", subject=submitted["id"])
    return answer(farm.farm("job", "show", submitted["id"], "--json"))["job"]["error"]


def kill_traces(farm):
    for pid in traces(farm):
        with suppress(ProcessLookupError):  # a subshell's
            os.kill(pid, signal.SIGKILL)


def traces(farm):
    """Processes of the phone that trace."""
    tree = read_tree(farm.lab.phone(phones(farm)[0].nickname).pid)
    return [process.pid for process in tree if process.name == "perfetto"]
