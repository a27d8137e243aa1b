"""Jobs of kind energy by a virtual phone's power rails, while the cable feeds it, and what they do without."""

import json
import os
import signal

import pytest

from farm.simulation import physics
from farm.simulation.process_tree import read_tree
from tests.support.tunable import dense_onnx
from tests.support.whole_farm import Story, answer, phones, until, until_ready

pytestmark = [pytest.mark.farm("galaxy-a55"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def farm(whole):
    phone = phones(whole)[0]
    whole.lab.battery(phone.nickname, 80)
    whole.lab.fault(phone.nickname, "physics")
    until_ready(whole)
    return whole


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "small.onnx"
    path.write_bytes(dense_onnx(256, 4))
    return path


def rails(farm, mode):
    farm.lab.fault(phones(farm)[0].nickname, "power_rails", mode=mode)


def energy(farm, model, *words):
    return farm.farm("energy", model, "--on", phones(farm)[0].name, "--half-width", "0.5", *words, timeout_s=250)


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        ("none", "no power rails that serve (its perfetto names none)"),
        ("refused", "its perfetto ended with 1: Failed to connect to the tracing service: Permission denied"),
        ("garbage", "its perfetto printed no trace"),
        ("hang", "its perfetto did not end in 20 s"),
    ],
)
def test_a_phone_without_rails_that_serve_needs_its_gauge(farm, model, mode, why):
    rails(farm, mode)
    done = energy(farm, model)
    assert done.returncode == 1
    assert why in " ".join((done.stdout + done.stderr).split())
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
    def kill():
        for pid in traces(farm):
            os.kill(pid, signal.SIGKILL)

    error = broken_by(farm, model, kill)
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


def traces(farm):
    """Processes of the phone that trace."""
    tree = read_tree(farm.lab.phone(phones(farm)[0].nickname).pid)
    return [process.pid for process in tree if process.name == "perfetto"]
