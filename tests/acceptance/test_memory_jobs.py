"""Jobs of kind memory on a virtual phone, whose RPC server is a real process: what a model needs is found."""

import json

import pytest

from farm.kinds.memory.phases import PHASES
from tests.support.known_memory import MIB, known_memory_onnx
from tests.support.pages import run_shown

pytestmark = pytest.mark.farm("galaxy-s9")

KNOWN = 64
MODEL = "known.onnx", known_memory_onnx(KNOWN)


def test_the_memory_of_each_phase_is_found(farm, model):
    words = ("memory", model, "--on", "android", "--measure", "1", "--json")
    done = farm.farm(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    (result,) = json.loads(done.stdout)["results"]
    phases = {row["phase"]: row for row in result["phases"]}
    assert tuple(phases) == PHASES
    assert all(row["ms"] > 0 for row in phases.values())
    first = phases["first run"]
    assert first["peak_rss_bytes"] - first["rss_before_bytes"] == pytest.approx(KNOWN * MIB, rel=0.02)
    assert phases["steady run"]["peak_rss_bytes"] > KNOWN * MIB
    assert phases["later load"]["peak_rss_bytes"] < KNOWN * MIB  # of another process, which ran nothing
    assert phases["steady run"]["low_ms"] <= phases["steady run"]["ms"] <= phases["steady run"]["high_ms"]
    assert result["peak_bytes"] >= phases["steady run"]["peak_rss_bytes"]
    assert not any("peak" in note or "smaps" in note for note in result["certificate"]["notes"])
    history = farm.farm("history", model)
    assert "cpu, float32, peak memory\n" in history.stdout, history.stderr
    checked = farm.farm("ci", *words, "--branch", "topic", "--commit", "c1", "--fail-if", "worse by 20 %")
    assert checked.returncode == 0, checked.stderr
    metrics = {case["metric"]: case["answer"] for case in json.loads(checked.stdout)["cases"]}
    assert metrics == dict.fromkeys(("peak memory", "first load", "first run"), "no baseline")
    shown = farm.farm("job", "show", result["job"]).stdout
    assert "later load" in shown
    assert f"at most {result['peak_bytes'] / 1e6:.1f} MB" in shown


def test_the_page_does_what_it_says(farm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_shown(farm, "memory.md") == 2
