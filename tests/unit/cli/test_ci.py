"""`farm ci bench`: when it benches again, its files and exit codes. The farm's answers are imitated."""

from __future__ import annotations

import json
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import typer

from farm.cli import ci
from farm.common.errors import ExitCode, NoPhoneError, PhoneError
from farm.kinds.bench import BenchSpec
from farm.kinds.energy import EnergySpec
from farm.kinds.program import ProgramSpec


def row(seq, median_s, **fields):
    estimate = {"median_s": median_s, "low_s": median_s * 0.998, "high_s": median_s * 1.002}
    return {
        "seq": seq, "job": f"job-{seq}", "model": "a" * 64, "name": "net.onnx", "device": "pixel", "epoch": "one",
        "at": f"2026-11-{1 + seq:02d}T12:00:00+00:00", "estimate": estimate, "verdict": "trusted", "target": "cpu",
        "precision": "float32", "tuned": False, "branch": "main", "commit": f"commit{seq}", **fields,
    }  # fmt: skip


def joules(value):
    return {"energy": {"value": value, "low": 0.99 * value, "high": 1.01 * value}}


BASELINE = [row(seq, 0.01 + 1e-5 * (seq % 3)) for seq in range(8)]


class Farm:
    """Benches one phone: each bench takes the next of `times`, seconds; an error ends it."""

    def __init__(self, times):
        self.times = list(times)
        self.rows = list(BASELINE)
        self.outcomes = {}
        self.asked, self.kinds = [], []

    def spec(self, kind, *, model, **fields):
        self.kinds.append(kind)
        if kind == "energy":
            return EnergySpec(model="a" * 64, name=model.name, **fields)
        if kind == "program":
            fields["program"] = "b" * 64 if isinstance(fields["program"], bytes) else ""
            return ProgramSpec(model="a" * 64, **fields)
        return BenchSpec(model="a" * 64, name=model.name, **fields)

    def bench(self, spec):
        self.asked.append((spec.on, spec.branch, spec.commit))
        seq, time_s = len(self.rows), self.times.pop(0)
        if isinstance(time_s, NoPhoneError):
            raise time_s
        error = None if isinstance(time_s, float) else time_s
        if error is None and time_s:
            other = {"estimate": None, "values": joules(time_s)} if spec.kind == "energy" else {}
            self.rows.append(row(seq, time_s, branch=spec.branch, commit=spec.commit, **other))
        job = SimpleNamespace(id=f"job-{seq}", state="failed" if error else "done")
        certificate = {"verdict": "rejected", "values": {}, "reasons": [{"cause": "the meter does not resolve it"}]}
        result = {
            "certificate": {} if time_s else certificate,
            "ran_on": {"words": "GPU 3, CPU 1 nodes", "offloaded": 0.75},
        }
        self.outcomes[job.id] = SimpleNamespace(ok=error is None, device="pixel", job=job, error=error, result=result)
        return SimpleNamespace(ids=[job.id], jobs=[job])

    def job(self, job, *, fetch_outputs):
        assert not fetch_outputs
        return self.outcomes[job]

    def call(self, kind, **_):
        assert kind == "history.list"
        return {"rows": self.rows[::-1], "more": False}


@pytest.fixture
def bench(tmp_path, monkeypatch, capsys):
    (tmp_path / "net.onnx").write_bytes(b"model")

    def bench(*times, kind="bench", **options):
        farm = Farm(times)
        if kind == "energy":
            farm.rows = [{**each, "estimate": None, "values": joules(0.01)} for each in BASELINE]

        @contextmanager
        def opened():
            yield farm

        def submit_and_wait(farm, spec, **_):
            submitted = farm.bench(spec)
            return submitted, [farm.job(submitted.ids[0], fetch_outputs=False)]

        monkeypatch.setattr(ci.work, "client", opened)
        monkeypatch.setattr(ci.work, "submit_and_wait", submit_and_wait)
        monkeypatch.setattr(ci.work, "submit", lambda farm, spec: farm.bench(spec))
        monkeypatch.setattr(ci.work, "follow", lambda *_, **__: None)
        monkeypatch.setattr(ci, "connect", opened)
        named = {"branch": "topic", "commit": "new", "json": True}
        command = ci.bench if kind == "bench" else ci.check_command(EnergySpec)
        with pytest.raises(typer.Exit) as ended:
            command(model=tmp_path / "net.onnx", on="android", devices="all", **(named | options))
        (case,) = json.loads(capsys.readouterr().out)["cases"]
        assert set(farm.kinds) == {"program" if "runtime" in options else kind}
        return ended.value.exit_code, case, farm.asked

    return bench


def test_a_model_that_is_not_slower_is_benched_once(bench):
    code, case, asked = bench(0.01001)
    assert (code, case["answer"], asked) == (ExitCode.OK, "within", [("android", "topic", "new")])


def test_two_slow_benches_on_the_same_phone_fail(bench, tmp_path):
    files = {"junit": tmp_path / "farm.xml", "summary": tmp_path / "farm.md"}
    (tmp_path / "farm.md").write_text("of another step\n")
    code, case, asked = bench(0.012, 0.0115, **files)
    assert (code, case["answer"]) == (ExitCode.FAILED, "slower")
    assert case["ratio"] == pytest.approx(1.149, abs=0.002)  # the lesser of the two
    assert asked == [("android", "topic", "new"), ("pixel", "topic", "new")]
    assert "<failure" in files["junit"].read_text()
    assert files["summary"].read_text().startswith("of another step\n### farm: 1 of 1 slower by 2 % or more\n")


def test_another_runtime_is_benched_by_its_program(bench, tmp_path):
    (tmp_path / "onnxruntime_perf_test").write_text("a program")
    options = {"runtime": "ort", "runtime_folder": tmp_path, "settings": ["threads=2"]}
    code, case, asked = bench(0.012, 0.0115, **options)
    assert (code, case["answer"]) == (ExitCode.FAILED, "slower")
    assert asked == [("android", "topic", "new"), ("pixel", "topic", "new")]


def test_a_slow_bench_that_is_not_confirmed_fails_nothing(bench):
    code, case, _ = bench(0.012, 0.01)
    assert (code, case["answer"]) == (ExitCode.OK, "cannot tell")
    code, case, _ = bench(0.012, NoPhoneError("all phones left"))
    assert (code, case["answer"]) == (ExitCode.OK, "cannot tell")
    assert "no phone to measure it again" in case["about"]


def test_the_baselines_own_branch_is_checked_in_the_same_way(bench):
    code, case, _ = bench(0.012, 0.012, branch="main")
    assert (code, case["about"]) == (ExitCode.FAILED, "main, 8 results")  # none of the commit itself


def test_an_answer_can_be_required(bench):
    assert bench(0.01, baseline="release")[:1] == (ExitCode.OK,)
    code, case, _ = bench(0.01, baseline="release", require_answer=True)
    assert (code, case["answer"]) == (ExitCode.NO_ANSWER, "no baseline")
    assert bench(PhoneError("it fell off the table"), require_answer=True)[0] == ExitCode.NO_ANSWER
    assert bench(0.012, 0.012, require_answer=True)[0] == ExitCode.FAILED


def test_a_phone_that_failed_has_its_exit_code_and_reason(bench):
    code, case, _ = bench(PhoneError("it fell off the table"))
    assert (code, case["answer"], case["about"]) == (ExitCode.FAILED, "failed", "it fell off the table")


def test_work_that_was_not_offloaded_fails_whatever_its_time(bench, tmp_path):
    junit = tmp_path / "farm.xml"
    code, case, asked = bench(0.01001, require_offload="100%", junit=junit)
    assert (code, case["answer"], len(asked)) == (ExitCode.FAILED, "failed", 1)
    assert case["about"] == "75 % was offloaded of 100 %; it ran on GPU 3, CPU 1 nodes"
    assert "<error" in junit.read_text()
    assert bench(0.01001, require_offload="75%")[0] == ExitCode.OK
    assert bench(0.01001, require_offload="76%", require_answer=True)[0] == ExitCode.NO_ANSWER


def test_another_kind_is_checked_by_what_it_measured(bench):
    code, case, asked = bench(0.0101, kind="energy")
    assert (code, case["answer"], case["metric"], len(asked)) == (ExitCode.OK, "within", "energy", 1)
    code, case, asked = bench(0.012, 0.0125, kind="energy", fail_if="worse by 2 %")
    assert (code, case["answer"], len(asked)) == (ExitCode.FAILED, "worse", 2)
    code, case, _ = bench(0.012, PhoneError("it fell off the table"), kind="energy")
    assert (code, case["answer"]) == (ExitCode.FAILED, "failed")


def test_what_was_not_resolved_has_no_answer(bench):
    code, case, _ = bench(0.0, kind="energy")
    assert (code, case["answer"]) == (ExitCode.OK, "cannot tell")
    assert case["about"] == "the result is rejected: the meter does not resolve it"
    assert bench(0.0, kind="energy", require_answer=True)[0] == ExitCode.NO_ANSWER
