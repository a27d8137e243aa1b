"""Pages of jobs, the queue, history and records over made-up verbs."""

from __future__ import annotations

import json
import re
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any

import pytest

from farm.common.errors import NotAllowedError
from farm.control.callers import Role
from farm.control.router import Answer
from farm.head.queue.model import NoSuchJobError
from farm.kinds.bench import page as bench_page
from farm.web import jobs as jobs_module
from farm.web.job_views import PAGE_JOBS, lenient
from farm.web.plots import Plot, PlotSource
from tests.support.web_desk import Desk, page, text_of

AT = "2026-11-22T06:00:00+00:00"
HOSTILE = "<img src=x onerror=alert(1)>\"'&"
SHA = "ab" * 32
BENCH = {
    "samples_s": [1e-3, 2e-3, 1.5e-3],
    "latency": {"count": 3, "median_ms": 1.5, "min_ms": 1.0, "max_ms": 2.0, "low_ms": 1.0, "high_ms": 2.0},
    "estimate": {"median_ms": 1.5, "low_ms": 1.0, "high_ms": 2.0, "confidence": 0.95},
    "verdict": "suspect", "max_abs_error": 1e-8, "target": "cpu",
    "certificate": {
        "raw": SHA, "count": 3, "reasons": [{"code": "wide", "verdict": "suspect", "cause": "it is <wide>"}],
        "tries": [{"reported": True, "started_at": AT, "seconds": 3.0}], "device": "pixel",
        "conditions": {"before": {"temperature_c": 30.0}, "during": [], "after": {"temperature_c": 31.5}},
    },
}  # fmt: skip


def row(**fields: Any) -> dict[str, Any]:
    return {
        "id": "bench-1", "kind": "bench", "name": "m.onnx", "user": "ann", "state": "done", "selector": "android",
        "device": "", "on": "pixel", "array": "", "priority": 1, "submitted_at": AT, "started_at": AT, "ended_at": AT,
        "attempts": 1, "error": None, "waits": "", "progress": None, **fields,
    }  # fmt: skip


def shown(job: dict[str, Any], **fields: Any) -> dict[str, Any]:
    spec = {"kind": job["kind"], "on": "android", "name": job["name"], "model": SHA}
    return {"job": job, "spec": spec, "after": [], "attempts": [], "result": None, "progress": None, **fields}


def desk(told: dict[str, Any], raw: bytes = b"{}", **answers: Any) -> Desk:
    known = told["job"]["id"]

    def show(job: str) -> dict[str, Any]:
        if not known.startswith(job):
            raise NoSuchJobError(f"there is no job {job!r}")
        return told

    return Desk(
        **{
            "job.show": show,
            "job.log_tail": {"lines": [], "start": 0, "next": 0, "number": 0},
            "job.list": {"jobs": [told["job"]], "more": False, "before": ""},
            "explain": {
                "estimate_s": 60.0,
                "waits": "",
                "limits": [],
                "devices": [{"device": "pixel", "reason": "is leased"}],
            },
            "artifact.get": Raw(raw),
            "device.readings": {"device": "pixel", "at": [], "columns": []},
            "lease.list": {"leases": [], "waiting": [], "waiting_more": 0},
            **answers,
        }
    )


class Raw:
    """`artifact.get` in two parts."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __call__(self, sha256: str, offset: int) -> Any:
        assert sha256 == SHA
        half = max(1, len(self.data) // 2)
        return Framed(self.data[offset : offset + half], len(self.data))


class Framed(dict[str, Any]):
    """The fields of an answer with a frame."""

    def __init__(self, frame: bytes, total: int) -> None:
        super().__init__(total_bytes=total)
        self.frame = frame


@pytest.fixture(autouse=True)
def frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """The made-up desk answers with frames too."""
    plain = Desk.ask

    async def ask(self: Desk, caller: Any, kind: str, fields: Any) -> Answer:
        answer = await plain(self, caller, kind, fields)
        return Answer(answer.fields, (answer.fields.frame,)) if isinstance(answer.fields, Framed) else answer

    monkeypatch.setattr(Desk, "ask", ask)


def plots(text: str) -> list[Any]:
    return [json.loads(unescape(found)) for found in re.findall(r"data-plot='([^']*)'", text)]


async def test_head_of_a_file_reads_its_first_part_only() -> None:
    told = shown(row(), result={**BENCH})
    async with page(desk(told, b"x" * 1000)) as farm:
        answer = await farm.client.head("/jobs/bench-1/files/samples")
        assert answer.status_code == 200
        assert "attachment" in answer.headers["content-disposition"]
        assert answer.content == b""
        assert farm.kinds().count("artifact.get") == 1


async def test_a_list_is_asked_for_as_the_address_says() -> None:
    told = desk(shown(row()), **{"job.list": {"jobs": [row()], "more": True, "before": "bench-1"}})
    async with page(told) as farm:
        answer = await farm.client.get("/jobs?state=live&text=m&user=ann&kind=bench")
        _, _, fields = farm.desk.asked[-1]
        assert (fields["text"], fields["user"], fields["of_kind"]) == ("m", "ann", "bench")
        assert "running" in fields["state"]
        (older,) = re.findall(r'rel="next" href="([^"]*)"', answer.text)
        assert "before=bench-1" in older
        assert "text=m" in older
        part = await farm.part("/jobs?state=live")
        assert "<html" not in part.text
        assert (await farm.client.get("/jobs?state=nonsense")).status_code == 400


async def test_a_selector_that_cannot_be_read_is_told_beside_it() -> None:
    async with page(desk(shown(row()))) as farm:
        answer = await farm.client.get("/jobs?selector=soc%3D")
    assert answer.status_code == 200
    assert 'role="alert"' in answer.text
    assert 'value="soc="' in answer.text


async def test_a_bench_has_its_verdict_and_its_plots_with_their_tables() -> None:
    raw = json.dumps({"tries": [{"start_s": [0.0, 1.0, 2.0]}]}).encode()
    async with page(desk(shown(row(), result=BENCH), raw)) as farm:
        answer = await farm.client.get("/jobs/bench-1")
    samples, distribution = plots(answer.text)
    assert samples["panels"][0]["x"] == [0.0, 1.0, 2.0]
    assert samples["panels"][1]["lines"][0]["values"] == [30.0, 31.5]
    assert distribution["panels"][0]["lines"][0]["kind"] == "bars"
    words = text_of(answer.text)
    assert "it is <wide>" in words
    assert "30.0 °C at the beginning, 31.5 °C at the end" in words
    assert answer.text.count("<table") >= 2
    assert "gone" not in words


async def test_the_verdict_stands_before_what_was_asked_for() -> None:
    async with page(desk(shown(row(), result=BENCH))) as farm:
        text = text_of((await farm.client.get("/jobs/bench-1")).text)
    assert text.index("Verdict") < text.index("Samples over time") < text.index("Asked for")
    assert "farm job show bench-1" in text
    async with page(desk(shown(row(state="running", ended_at=None)))) as farm:
        assert "Asked for" in (await farm.client.get("/jobs/bench-1/now")).text


async def test_a_failed_job_says_its_message_once() -> None:
    attempt = {"number": 1, "state": "failed", "device": "pixel", "started_at": AT, "ended_at": AT}
    tries = [
        {**attempt, "error": {"message": "the link broke"}},
        {**attempt, "number": 2, "error": {"message": "exit 3"}},
    ]
    failed = row(state="failed", error={"message": "exit 3", "hint": "", "evidence": ""})
    async with page(desk(shown(failed, attempts=tries))) as farm:
        text = text_of((await farm.client.get("/jobs/bench-1")).text)
    assert (text.count("exit 3"), text.count("the link broke")) == (1, 1)
    async with page(desk(shown(row(state="running", ended_at=None), attempts=tries))) as farm:
        assert "exit 3" in (await farm.client.get("/jobs/bench-1")).text


async def test_a_profile_has_its_operators() -> None:
    operator = {"name": "conv2d", "unit": "cpu", "calls": 2, "total_ms": 1.25, "share": 0.4}
    result = {**BENCH, "profile": {"operators": [operator], "notes": ["timed in 20 runs"]}}
    async with page(desk(shown(row(), result=result))) as farm:
        text = text_of((await farm.client.get("/jobs/bench-1")).text)
    assert "conv2d cpu 2 1.250 40.0 % timed in 20 runs" in text


async def test_raw_samples_that_are_gone_or_garbage_leave_the_rest() -> None:
    for raw in (b"[]", b"garbage"):
        async with page(desk(shown(row(), result=BENCH), raw)) as farm:
            answer = await farm.client.get("/jobs/bench-1")
        assert answer.status_code == 200
        assert "The raw samples of this job are gone" in text_of(answer.text)
        assert len(plots(answer.text)) == 2


async def test_plots_are_made_beside_the_daemon_s_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    where = []
    known = bench_page.PAGE

    def watched(source: PlotSource) -> list[Plot]:
        where.append(threading.current_thread())
        return known.plots(source)

    monkeypatch.setattr(bench_page, "PAGE", replace(known, plots=watched))
    async with page(desk(shown(row(result=None), result=BENCH))) as farm:
        answer = await farm.client.get("/jobs/bench-1")
    assert len(plots(answer.text)) == 2
    assert where
    assert where[0] is not threading.current_thread()


async def test_raw_samples_that_are_too_many_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_module, "MOST_RAW_BYTES", 10)
    async with page(desk(shown(row(), result=BENCH), b" " * 100)) as farm:
        answer = await farm.client.get("/jobs/bench-1")
    assert "too many to draw" in text_of(answer.text)
    assert farm.kinds().count("artifact.get") == 1


@pytest.mark.parametrize(
    "kind", ["bench", "memory", "energy", "sweep", "sustain", "compare", "tune", "run", "shell", "lease"]
)
@pytest.mark.parametrize("result", [None, {}, {"certificate": None, "curve": []}])
async def test_results_of_another_release_are_shown_as_far_as_they_are_known(kind: str, result: Any) -> None:
    async with page(desk(shown(row(kind=kind), result=result))) as farm:
        assert (await farm.client.get("/jobs/bench-1")).status_code == 200


async def test_the_joules_of_an_inference_stand_on_its_page() -> None:
    found = {
        "net_j": 0.04, "low_j": 0.038, "high_j": 0.042, "gross_j": 0.06, "idle_w": 1.0, "busy_w": 3.0,
        "inference_s": 0.02,
    }  # fmt: skip
    result = {"device": "pixel", "energy": found, "unresolved": None, "certificate": {"notes": ["a <note>"]}}
    async with page(desk(shown(row(kind="energy"), result=result))) as farm:
        text = text_of((await farm.client.get("/jobs/bench-1")).text)
    assert "40.00 mJ above idle, 38.00 to 42.00 mJ" in text
    assert "a <note>" in text


async def test_the_page_says_that_a_meter_does_not_resolve_the_question() -> None:
    result = {"device": "pixel", "energy": None, "unresolved": {"sentence": "too coarse", "needed_s": 600.4}}
    async with page(desk(shown(row(kind="energy"), result=result))) as farm:
        text = text_of((await farm.client.get("/jobs/bench-1")).text)
    assert "The meter does not resolve it: too coarse. 600 s are expected to tell." in text


async def test_the_settings_of_a_sweep_stand_in_a_table() -> None:
    times = {"median_ms": 20.0, "low_ms": 15.0, "high_ms": 25.0, "rounds": 8}
    rows = [
        {"setting": "1 thread", "ratio": 1.25, "ratio_low": 1.2, "ratio_high": 1.3, "slower": True, **times},
        {"setting": "2 threads", "ratio": 1.0, "ratio_low": 1.0, "ratio_high": 1.0, "slower": False, **times},
    ]
    result = {"device": "pixel", "settings": rows, "recommended": 1, "certificate": {"notes": ["left out: <8>"]}}
    async with page(desk(shown(row(kind="sweep"), result=result))) as farm:
        text = text_of((await farm.client.get("/jobs/bench-1")).text)
    assert "2 threads is recommended" in text
    assert "1 thread 20.00 15.00 to 25.00 25 % slower 8" in text
    assert "2 threads 20.00 15.00 to 25.00 the fastest 8" in text
    assert "left out: <8>" in text


async def test_the_phases_of_a_model_stand_in_a_table() -> None:
    phase = {
        "phase": "first <load>", "ms": 12.5, "peak_rss_bytes": 9_000_000, "rss_bytes": 8_000_000, "pss_bytes": None,
        "swap_bytes": 0, "gpu_bytes": None, "kills": ["Kill 'a'"],
    }  # fmt: skip
    result = {"device": "pixel", "phases": [phase], "peak_bytes": 9_000_000, "notes": ["no smaps_rollup"]}
    async with page(desk(shown(row(kind="memory"), result=result))) as farm:
        text = text_of((await farm.client.get("/jobs/bench-1")).text)
    assert "9.0 MB of memory and swap at most" in text
    assert "first <load> 12.50 9.0 8.0 \N{EN DASH} 0.0 \N{EN DASH} 1" in text
    assert "no smaps_rollup" in text


async def test_a_kind_without_a_page_shows_the_plain_values_of_its_result() -> None:
    result = {"device": "pixel", "ended": "its <time> is over", "held_s": 90.0, "more": {"left": "out"}}
    async with page(desk(shown(row(kind="lease"), result=result))) as farm:
        text = text_of((await farm.client.get("/jobs/bench-1")).text)
    assert "Result device pixel ended its <time> is over held 1m 30s Files" in text


async def test_a_search_that_runs_draws_its_plots_anew_and_one_that_ended_does_not() -> None:
    progress = {"step": "searching", "tuning": {"trials": 3, "wanted": 8, "spent_s": 4.0}, "curve": [[1, 1, 1]]}
    running = row(kind="tune", state="running", ended_at=None, result=None)
    async with page(desk(shown(running, progress=progress))) as farm:
        text = (await farm.client.get("/jobs/bench-1")).text
        assert len(plots(text)) == 1
        assert 'hx-get="/jobs/bench-1/plots"' in text
        progress["tuning"]["tasks"] = [
            {"name": "fused_conv2d", "weight": 2, "trials": 3, "failed": 1, "default_ms": 2.5, "best_ms": None}
        ]
        now = text_of((await farm.client.get("/jobs/bench-1/now")).text)
        assert "Tasks so far" in now
        assert "fused_conv2d 2 3 1 2.500" in now
    async with page(desk(shown(row(kind="tune"), progress=progress))) as farm:
        assert 'hx-get="/jobs/bench-1/plots"' not in (await farm.client.get("/jobs/bench-1")).text


async def test_a_tuning_that_cannot_tell_shows_no_large_number_and_no_schedule_that_is_not_used() -> None:
    gain = {
        "answer": "cannot tell",
        "times": 3.75,
        "low": 0.5,
        "high": 9.0,
        "confidence": 0.99,
        "tuned_ms": 1,
        "untuned_ms": 2,
    }
    task = {"name": "reshape", "weight": 1, "trials": 2, "failed": 0, "default_ms": 0.0043, "best_ms": 1.4378}
    result = {"speedup": gain, "trials": 2, "wanted_trials": 2, "search_s": 3.0, "device": "pixel", "tasks": [task]}
    async with page(desk(shown(row(kind="tune"), result=result))) as farm:
        text = (await farm.client.get("/jobs/bench-1")).text
        assert re.search(r"<p><strong>3.750 ", text)
        assert "99 % interval 0.500 to 9.000" in text_of(text)
        assert "TVM's own is kept" in text_of(text)
        assert "1.4378" not in text
        result["comparison"] = {"pairs": 38}
        assert "by only" not in (await farm.client.get("/jobs/bench-1")).text
        gain["low"] = 1.2
        assert "cannot tell by only 38 pairs of samples" in text_of((await farm.client.get("/jobs/bench-1")).text)
        gain["answer"] = "faster"
        assert re.search(r'<p class="figure"><strong>3.750 ', (await farm.client.get("/jobs/bench-1")).text)


async def test_the_beginning_of_an_id_leads_to_the_job() -> None:
    async with page(desk(shown(row()))) as farm:
        answer = await farm.client.get("/jobs/ben")
        assert (answer.status_code, answer.headers["location"]) == (303, "/jobs/bench-1")
        assert (await farm.client.get("/jobs/nobody")).status_code == 404


async def test_only_files_that_the_result_names_can_be_had() -> None:
    result = {**BENCH, "stdout": "hi"}
    async with page(desk(shown(row(), result=result), b"abcdef")) as farm:
        raw = await farm.client.get("/jobs/bench-1/files/samples")
        assert raw.content == b"abcdef"
        assert raw.headers["content-disposition"] == 'attachment; filename="bench-1.samples.json"'
        assert (await farm.client.get("/jobs/bench-1/files/stdout")).text == "hi"
        assert (await farm.client.get("/jobs/bench-1/files/result")).json() == result
        for name in ("outputs", SHA, "..%2f..%2fetc%2fpasswd", "%2e%2e", "x"):
            assert (await farm.client.get(f"/jobs/bench-1/files/{name}")).status_code == 404, name


async def test_a_job_is_cancelled_by_its_owner_s_form_only() -> None:
    running = row(state="running", ended_at=None)
    told = desk(shown(running), **{"job.cancel": {"jobs": [row(state="cancelled")], "changed": ["bench-1"]}})
    async with page(told) as farm:
        text = (await farm.client.get("/jobs/bench-1")).text
        assert "/cancel" not in text
        assert "Sign in" in text_of(text)
        assert (await farm.client.post("/jobs/bench-1/cancel")).status_code == 401
        csrf = await farm.sign_in("bob", Role.USER)
        assert "/cancel" not in (await farm.client.get("/jobs/bench-1")).text
        farm.web.sign_ins._sign_ins.clear()
        csrf = await farm.sign_in("ann", Role.USER)
        assert 'action="/jobs/bench-1/cancel"' in (await farm.client.get("/jobs/bench-1")).text
        assert (await farm.client.post("/jobs/bench-1/cancel", data={"csrf": "wrong"})).status_code == 400
        assert "job.cancel" not in farm.kinds()
        answer = await farm.client.post("/jobs/bench-1/cancel", data={"csrf": csrf})
        assert (answer.status_code, answer.headers["location"]) == (303, "/jobs/bench-1")
        assert "Job bench-1 is cancelled" in text_of((await farm.client.get("/jobs/bench-1")).text)
        assert (await farm.client.post("/jobs/bench-1/prune", data={"csrf": csrf})).status_code == 400


async def test_an_empty_log_says_so_in_the_part_that_its_first_line_replaces() -> None:
    empty = {"lines": [], "start": 0, "next": 0, "number": 1}
    told = desk(shown(row(state="running", ended_at=None)), **{"job.log_tail": empty})
    async with page(told) as farm:
        text = (await farm.client.get("/jobs/bench-1/log")).text
        assert re.search(
            r'class="log-tail"[^>]*hx-swap="outerHTML"><span[^>]*>The log is empty so far.</span></p>', text
        )
        assert text.count("The log is empty") == 1
        told.answers["job.log_tail"] = {**empty, "next": 9}
        assert "empty" not in (await farm.part("/jobs/bench-1/log?after=0")).text


async def test_a_log_is_read_on_and_back() -> None:
    line = {"at": AT, "level": "error", "source": "worker", "text": HOSTILE}
    tail = {"lines": [line], "start": 100, "next": 200, "number": 1}
    told = desk(shown(row(state="running", ended_at=None)), **{"job.log_tail": tail})
    async with page(told) as farm:
        whole = await farm.client.get("/jobs/bench-1/log")
        assert "<img" not in whole.text
        assert HOSTILE.replace(" ", "") in text_of(whole.text).replace(" ", "")
        assert "before=100" in whole.text
        assert "after=200" in whole.text
        part = await farm.client.get("/jobs/bench-1/log?after=200", headers={"hx-request": "true"})
        assert farm.desk.asked[-2][2]["after"] == 200
        assert "<html" not in part.text
        assert "before=" not in part.text


async def test_a_list_shows_results_verdicts_and_durations() -> None:
    rejected = {"verdict": "rejected", "estimate": {"median_ms": 1.5}}
    listed = row(result=rejected, started_at=AT, ended_at="2026-11-22T06:00:12+00:00")
    told = desk(shown(row()), **{"job.list": {"jobs": [listed], "more": False, "before": ""}})
    async with page(told) as farm:
        answer = await farm.client.get("/jobs")
        assert farm.desk.asked[-1][2]["results"] is True
    assert "done" in text_of(answer.text)
    assert "1.500 ms rejected 12.0 s" in text_of(answer.text)
    assert 'class="tone-poor" data-key="bench-1"' in answer.text
    assert "tone-good" not in answer.text


async def test_a_running_job_s_time_goes_on_from_what_the_server_says() -> None:
    began = (datetime.now(UTC) - timedelta(seconds=3725)).isoformat()
    running = row(state="running", started_at=began, ended_at=None)
    async with page(desk(shown(running))) as farm:
        text = (await farm.client.get("/jobs")).text
    assert re.search(r'<span data-elapsed="37\d\d">1h 2m</span>', text)
    async with page(desk(shown({**running, "state": "queued"}))) as farm:  # for its next attempt
        assert "data-elapsed" not in (await farm.client.get("/jobs")).text


async def test_the_csv_has_all_pages_of_the_jobs_that_match() -> None:
    def listed(before: str = "", **asked: Any) -> dict[str, Any]:
        assert (asked["user"], asked["state"]) == ("ann", ["failed"])
        return {"jobs": [row(id="bench-2" if before else "bench-3")], "before": "" if before else "bench-3"}

    async with page(desk(shown(row()), **{"job.list": listed})) as farm:
        answer = await farm.client.get("/jobs.csv?state=failed&user=ann")
    assert answer.headers["content-disposition"] == 'attachment; filename="jobs.csv"'
    assert [line.partition(",")[0] for line in answer.text.splitlines()] == ["id", "bench-3", "bench-2"]


async def test_a_csv_of_hardly_any_job_looks_back_no_further_than_documented() -> None:
    listed = {"jobs": [], "before": "bench-1"}  # none of 2,000 jobs matches, and there are older ones
    async with page(desk(shown(row()), **{"job.list": listed})) as farm:
        assert len((await farm.client.get("/jobs.csv?text=rare")).text.splitlines()) == 1
        assert len(farm.desk.asked) == jobs_module.CSV_PAGES


async def test_an_unknown_column_sorts_nothing() -> None:
    async with page(desk(shown(row()))) as farm:
        await farm.client.get("/jobs?sort=-shoe")
        assert farm.desk.asked[-1][2]["limit"] == PAGE_JOBS


async def test_chosen_jobs_are_cancelled_and_what_is_refused_is_named() -> None:
    def cancel(job: str) -> dict[str, Any]:
        if job == "of-bob":
            raise NotAllowedError("it is of bob")
        return {"jobs": [row(id=job, state="done")], "changed": [job] if job == "bench-1" else []}

    told = desk(shown(row(state="running", ended_at=None)), **{"job.cancel": cancel})
    async with page(told) as farm:
        assert 'name="job"' not in (await farm.client.get("/jobs")).text
        csrf = await farm.sign_in("ann", Role.USER)
        assert 'name="job" value="bench-1"' in (await farm.client.get("/jobs?mine=1")).text
        assert farm.desk.asked[-1][2]["user"] == "ann"
        form = {"csrf": csrf, "to": "/jobs?mine=1", "job": ["bench-1", "bench-1", "ended", "of-bob"]}
        answer = await farm.client.post("/chosen/cancel", data=form)
        assert (answer.status_code, answer.headers["location"]) == (303, "/jobs?mine=1")
        assert farm.session.notice == "1 of 3 jobs are cancelled. ended: it stays done. of-bob: it is of bob."
        for nothing in ({}, {"job": ""}):  # of no job, the verb would cancel all of this user's
            assert (await farm.client.post("/chosen/cancel", data={"csrf": csrf, **nothing})).status_code == 400


async def test_chosen_jobs_run_again_once_they_have_ended() -> None:
    told = shown(row())
    again = {"jobs": [{"id": "bench-2"}], "warnings": []}
    async with page(desk(told, **{"job.submit": again})) as farm:
        csrf = await farm.sign_in("ann", Role.USER)
        await farm.client.post("/chosen/again", data={"csrf": csrf, "job": "bench-1"})
        assert farm.desk.asked[-1][1] == "job.submit"
        assert farm.session.notice == "1 of 1 job is submitted again."
        told["job"]["ended_at"] = None
        await farm.client.post("/chosen/again", data={"csrf": csrf, "job": "bench-1"})
        assert farm.session.notice == "0 of 1 job is submitted again. bench-1: it has not ended."


async def test_a_rejected_result_is_not_green_on_its_page() -> None:
    async with page(desk(shown(row(), result={**BENCH, "verdict": "rejected"}))) as farm:
        text = (await farm.client.get("/jobs/bench-1")).text
    assert '<span class="state big tone-poor"><span class="dot" aria-hidden="true"></span>done: rejected' in text


async def test_a_waiting_job_s_reason_is_said_once_with_its_place_and_the_estimate() -> None:
    queued = row(state="queued", ended_at=None, waits="a: held by ann; b: held by ann")
    held = [{"device": device, "reason": "held by ann"} for device in ("a", "b")]
    line = [{"job": "other"}, {"job": "bench-1"}]
    told = desk(
        shown(queued),
        explain={"estimate_s": 300.0, "waits": "", "limits": [], "devices": held},
        **{"lease.list": {"leases": [], "waiting": line, "waiting_more": 0}},
    )
    async with page(told) as farm:
        text = text_of((await farm.client.get("/jobs/bench-1")).text)
    assert "Place 2 in the queue , a phone within 5m." in text
    assert "a, b: held by ann" in text
    assert text.count("held by ann") == 1
    assert text.count("5m") == 1


async def test_a_search_that_goes_on_shows_its_trials_its_best_and_the_time_left() -> None:
    search = {
        "trials": 12, "wanted": 64, "estimate_s": 0.0025, "eta_s": 90.0, "spent_s": 30.0, "busy": 1,
        "phones": ["pixel"], "left_out": 0, "of_tasks": 3,
    }  # fmt: skip
    progress = {"step": "searching", "done": 12, "of": 64, "tuning": search, "timing": {}, "curve": []}
    told = shown(row(kind="tune", state="running", ended_at=None), progress=progress)
    async with page(desk(told)) as farm:
        text = text_of((await farm.client.get("/jobs/bench-1/now")).text)
        assert "trials 12 of 64 best 2.500 ms time left about 1m 30s, 30s spent phones 1 of 1 busy" in text
        search |= {"left_out": 2, "eta_s": None}
        text = text_of((await farm.client.get("/jobs/bench-1/now")).text)
        assert "best 1 of 3 tasks measured time left not known yet, 30s spent" in text


async def test_whoever_waits_has_a_place_a_reason_and_an_estimate() -> None:
    waiting = [{"user": "ann", "selector": "android", "priority": 1, "job": "bench-1", "waited_s": 3.0},
               {"user": "", "selector": "key", "priority": 1, "job": "", "waited_s": 1.0}]  # fmt: skip
    told = desk(
        shown(row(state="queued", ended_at=None, waits="no phone is free")),
        **{"lease.list": {"leases": [], "waiting": waiting, "waiting_more": 5}},
    )
    async with page(told) as farm:
        words = text_of((await farm.client.get("/queue")).text)
        assert "7 wait for a phone" in words
        assert "no phone is free" in words
        assert "within 1m" in words
        assert "pixel: is leased" in text_of((await farm.client.get("/queue/why/bench-1")).text)
        assert "pixel: is leased" in text_of((await farm.client.get("/jobs/bench-1")).text)
        assert (await farm.client.get("/queue?page=99")).status_code == 200


async def test_history_and_records() -> None:
    measured = {"seq": 1, "job": "bench-1", "model": SHA, "name": HOSTILE, "device": "pixel", "at": AT, "epoch": "14",
                "estimate": {"median_s": 1e-3, "low_s": 1e-3, "high_s": 2e-3}, "verdict": "trusted",
                "reference": {"nominal_s": 2e-3},
                "today": {"nominal_s": 1e-3, "median_s": 5e-4, "low_s": 5e-4, "high_s": 1e-3}}  # fmt: skip
    one_sample = {**measured, "seq": 3, "job": "bench-3", "today": None,
                  "estimate": {"median_s": 1e-3, "low_s": None, "high_s": None}}  # fmt: skip
    kept = {"set": 3, "name": HOSTILE, "version": 1, "target": "t", "records": 2, "at": AT, "user": HOSTILE, "job": "",
            "best": {"tasks": [{"name": HOSTILE, "weight": 1, "trials": 2, "failed": 0}]}}  # fmt: skip
    answers = {
        "history.models": {"models": [{"model": SHA, "name": HOSTILE, "count": 2}]},
        "history.list": {"rows": [one_sample, {**measured, "seq": 2}, measured], "more": True},
        "records.list": {"sets": [kept]},
        "records.show": kept,
    }
    async with page(desk(shown(row()), **answers)) as farm:
        for path in ("/history", f"/history?model={HOSTILE}", "/records", "/records/3"):
            answer = await farm.client.get(path)
            assert answer.status_code == 200, path
            assert "<img" not in answer.text, path
        history = await farm.client.get("/history?model=m")
        assert len(plots(history.text)) == 1
        assert "before=1" in history.text
        assert "2 of 3 results rescaled to today's nominal speed" in text_of(history.text)
        assert "1.000 ms none" in text_of(history.text)
        assert "bench-3 is A" not in history.text
        assert "0.5000 ms" in text_of(history.text)


async def test_the_start_of_history_is_a_matrix_of_models_and_phones_of_the_newest_results() -> None:
    def stored(before: int = 0, **asked: Any) -> dict[str, Any]:
        assert "model" not in asked
        rows = [measured(2, "suspect", device="fire")] if before else [measured(4, "trusted"), measured(3, "trusted")]
        whole = {"model": SHA, "epoch": "14", "soc": "sm8650", "gpu": "", "reasons": []}
        return {"rows": [{**each, **whole} for each in rows], "more": not before}

    async with page(Desk(**{"history.list": stored})) as farm:
        text = (await farm.client.get("/history")).text
    assert f'href="/history?model={SHA[:12]}&amp;device=pixel" aria-label="m on pixel: 4.000 ms"' in text
    assert '<option value="m">' in text
    assert "fire sm8650 pixel sm8650 m cpu, float32 2.000 suspect 1.800 to 2.200 4.000 trusted" in text_of(text)
    assert "2 results" in text_of(text)  # the sparkline's title
    async with page(Desk(**{"history.list": {"rows": [], "more": False}})) as farm:
        assert "No model was measured yet" in (await farm.client.get("/history")).text


async def test_hostile_words_of_jobs_are_words() -> None:
    bad = row(name=HOSTILE, user=HOSTILE, selector=HOSTILE, on=HOSTILE, array=HOSTILE, state="failed",
              error={"message": HOSTILE, "hint": HOSTILE, "evidence": HOSTILE})  # fmt: skip
    result = {
        **BENCH,
        "certificate": {
            **BENCH["certificate"],
            "reasons": [{"code": "x", "verdict": HOSTILE, "cause": HOSTILE}],
            "notes": [HOSTILE],
        },
    }  # type: ignore[dict-item]
    async with page(desk(shown(bad, result=result))) as farm:
        for path in ("/jobs", "/jobs/bench-1", f"/jobs?text={HOSTILE}&user={HOSTILE}&device={HOSTILE}"):
            answer = await farm.client.get(path)
            assert answer.status_code == 200, path
            assert "<img" not in answer.text, path


def measured(seq: int, verdict: str, **fields: Any) -> Any:
    estimate = {"median_s": seq * 1e-3, "low_s": seq * 0.9e-3, "high_s": seq * 1.1e-3}
    return lenient(
        {"seq": seq, "job": f"bench-{seq}", "name": "m", "device": "pixel", "verdict": verdict, "estimate": estimate,
         "target": "cpu", "precision": "float32", "tvm": "0.1", "at": AT, **fields}
    )  # fmt: skip


def certified(median_s: float, **fields: Any) -> dict[str, Any]:
    estimate = {"median_s": median_s, "low_s": median_s * 0.9995, "high_s": median_s * 1.0005, "confidence": 0.95,
                "count": 100, "effective_count": 100.0, "block": 1}  # fmt: skip
    return {"device": "pixel", "epoch": "14", "verdict": "trusted", "reasons": [], "estimate": estimate, **fields}


async def test_a_history_of_trusted_results_on_a_logarithmic_axis_and_two_of_them_beside_each_other() -> None:
    rows = [measured(4, "trusted"), measured(3, "rejected"), measured(2, "trusted", tvm="0.2"), measured(1, "trusted")]
    answers = {
        "history.models": {"models": [{"model": SHA, "name": "m", "count": 4}]},
        "history.list": {"rows": rows, "more": True},
        "job.show": lambda job: {"result": {"certificate": certified(4e-3 if job == "bench-4" else 2e-3)}},
    }
    async with page(Desk(**answers)) as farm:
        every = await farm.client.get("/history?model=m")
        assert "bench-3" in every.text
        assert not plots(every.text)[0]["panels"][0]["log"]
        trusted = await farm.client.get("/history?model=m&trusted=1&log=1&a=bench-4&b=bench-2")
        assert "bench-3" not in trusted.text
        assert all(plot["panels"][0]["log"] for plot in plots(trusted.text))
        assert plots(trusted.text)[0]["title"] == "A and B"
        text = text_of(trusted.text)
        assert "A bench-4 pixel 4.000 ms 3.600 ms to 4.400 ms trusted" in text
        assert "B bench-2 pixel 2.000 ms" in text
        assert "B is faster: B / A is 0.500, 99 % interval 0.499 to 0.501." in text
        assert "ot measured in turns" in text
        assert "They differ in: tvm." in text
        assert "&amp;trusted=1&amp;log=1&amp;before=1" in trusted.text
        farm.desk.answers["job.show"] = lambda job: {"result": {"certificate": certified(1e-3, device=job)}}
        unlike = await farm.client.get("/history?model=m&a=bench-4&b=bench-2")
        assert "The two were measured on different phones: bench-4 and bench-2." in text_of(unlike.text)
        assert "Choose A and B" in (await farm.client.get("/history?model=m&a=bench-4&b=gone")).text
        rows[:] = [measured(3, "rejected")]
        assert "None of these results is trusted." in text_of(
            (await farm.client.get("/history?model=m&trusted=1")).text
        )


@pytest.mark.parametrize(("array", "devices"), [("", 2), ("array-1", 1)])
async def test_an_ended_job_is_submitted_once_more(array: str, devices: int) -> None:
    told = shown(row(array=array))
    told["spec"] |= {"devices": 2, "hold": True, "after": ["bench-0"]}
    submitted = {"jobs": [row(id="bench-2")], "array": "", "warnings": ["no phone is free"]}
    async with page(desk(told, **{"job.submit": submitted})) as farm:
        assert "Run again" not in (await farm.client.get("/jobs/bench-1")).text
        csrf = await farm.sign_in("ann", Role.USER)
        assert "Run again" in (await farm.client.get("/jobs/bench-1")).text
        answer = await farm.client.post("/jobs/bench-1/again", data={"csrf": csrf})
        assert (answer.status_code, answer.headers["location"]) == (303, "/jobs/bench-2")
        caller, kind, fields = farm.desk.asked[-1]
        assert (caller.user, kind) == ("ann", "job.submit")
        assert fields["spec"] == {**told["spec"], "devices": devices, "hold": False, "after": []}
        assert farm.session.notice == "Job bench-2 is submitted. Warning: no phone is free."
        told["job"]["ended_at"] = None
        assert "Run again" not in (await farm.client.get("/jobs/bench-1")).text
