"""Threads and cores of a bench on a virtual phone, whose RPC session is a real process: as the kernel has them."""

import contextlib
import json
import os
import threading

import psutil
import pytest

from farm.zoo import small_cnn
from tests.support.pages import run_shown

pytestmark = pytest.mark.farm("galaxy-s9")

PHONE_CORES = 8
MODEL = "small.onnx", small_cnn().SerializeToString(deterministic=True)


def bench(farm, model, *options, code=0, repeat=6):
    words = (
        "bench",
        model,
        "--on",
        "android",
        *options,
        "--repeat",
        str(repeat),
        "--number",
        "1",
        "--max-attempts",
        "1",
        "--json",
    )
    done = farm.farm(*words)
    assert done.returncode == code, done.stdout + done.stderr
    (result,) = json.loads(done.stdout)["results"]
    return result


def test_a_placement_is_in_the_certificate_and_apart_in_the_history(farm, model):
    free = bench(farm, model)
    assert free["certificate"]["placement"] == ""
    big = bench(farm, model, "--cores", "big", "--threads", "1")
    assert big["certificate"]["placement"] == "1 thread, cores 4-7"
    assert "1 thread, cores 4-7" in big["certificate"]["notes"]
    lines = json.loads(farm.farm("history", "small.onnx", "--json").stdout)["lines"]
    assert sorted((line["placement"] or "", len(line["results"])) for line in lines) == [
        ("", 1),
        ("1 thread, cores 4-7", 1),
    ]


def test_the_kernel_has_the_session_on_the_cores(farm, model):
    """While it is timed, a thread of the process that serves it has cores 4 to 7, or the later half of a small host."""
    here = sorted(os.sched_getaffinity(0))
    wanted = {4, 5, 6, 7} if len(here) >= PHONE_CORES else set(here[len(here) // 2 :])
    over, found = threading.Event(), []

    def look():
        while not over.wait(0.05):
            with contextlib.suppress(psutil.Error, OSError):
                found.extend(os.sched_getaffinity(each.id) for session in sessions() for each in session.threads())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        bench(farm, model, "--cores", "big", repeat=100)
    finally:
        over.set()
        thread.join()
    assert wanted in found


def sessions():
    """Processes that serve a session of a phone's RPC server: each is a child of one."""
    servers = [each for each in psutil.process_iter(["cmdline"]) if "--host=127.0.0.1" in (each.info["cmdline"] or ())]
    return [child for server in servers for child in server.children()]


def test_what_the_phone_does_not_allow_is_one_error(farm, model):
    error = bench(farm, model, "--top-app", code=1)["error"]
    assert error["code"] == "placement_refused"
    assert "does not let the session have the group top-app" in error["message"]
    assert "leave out --top-app" in error["hint"]


def test_several_cores_are_a_sweep_with_a_recommended_one(farm, model):
    words = ("bench", model, "--on", "android", "--threads", "1", "--cores", "big,little", "--measure", "2", "--json")
    done = farm.farm(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    (result,) = json.loads(done.stdout)["results"]
    assert [row["setting"] for row in result["settings"]] == ["1 thread, cores 4-7", "1 thread, cores 0-3"]
    assert all(row["rounds"] >= 8 and row["low_ms"] <= row["median_ms"] <= row["high_ms"] for row in result["settings"])
    assert result["max_abs_error"] < 1e-4
    assert result["certificate"]["model"] == "small.onnx"
    printed = farm.farm("job", "show", result["job"]).stdout
    assert f"recommended: {result['settings'][result['recommended']]['setting']}" in printed
    refused = farm.farm("bench", model, "--on", "android", "--cores", "big,little", "--repeat", "5")
    assert (refused.returncode, "--repeat does not go with several" in refused.stderr) == (2, True)
    assert result["job"] not in farm.farm("history", "small.onnx", "--json").stdout  # which has benches alone


def test_the_page_does_what_it_says(farm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_shown(farm, "threads.md") == 2
