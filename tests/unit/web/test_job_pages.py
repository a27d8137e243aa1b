"""Pages of jobs, the queue, history and records over made-up verbs: what is asked, sent, and refused."""

import json
import re
import threading
from dataclasses import replace
from datetime import timedelta

import pytest

from farm.common.errors import NotAllowedError
from farm.control.callers import Role
from farm.kinds.bench import page as bench_page
from farm.web import jobs as jobs_module
from farm.web.job_views import PAGE_JOBS
from tests.support.web_desk import Page, job_desk, plots, text_of
from tests.support.web_rows import AT, BENCH, HOSTILE, NOW, SHA, job, running, told

BENCHED = told(job(), result=BENCH)


async def test_head_of_a_file_reads_its_first_part_only():
    farm = Page(job_desk(BENCHED, b"x" * 1000))
    answer = await farm.client.head("/jobs/bench-1/files/samples")
    assert (answer.status_code, answer.content, farm.kinds().count("artifact.get")) == (200, b"", 1)
    assert "attachment" in answer.headers["content-disposition"]


async def test_a_list_is_asked_for_as_the_address_says():
    farm = Page(job_desk())
    await farm.html("/jobs?state=live&text=m&user=ann&kind=bench&selector=soc%3Dx")
    fields = farm.desk.asked_last("job.list")
    assert (fields["text"], fields["user"], fields["of_kind"], fields["results"]) == ("m", "ann", "bench", True)
    assert "running" in fields["state"]
    assert "<html" not in await farm.part("/jobs?state=live")
    assert (await farm.get("/jobs?state=nonsense")).status_code == 400
    await farm.html("/jobs?sort=-shoe")  # no column: nothing is sorted
    assert farm.desk.asked_last("job.list")["limit"] == PAGE_JOBS


async def test_an_error_of_an_attempt_is_shown_while_the_job_goes_on():
    attempt = {"number": 1, "state": "failed", "device": "pixel", "started_at": AT, "ended_at": AT}
    farm = Page(job_desk(told(running(), attempts=[{**attempt, "error": {"message": "exit 3"}}])))
    assert "exit 3" in await farm.words("/jobs/bench-1")


@pytest.mark.parametrize("raw", [b"[]", b"garbage", b" " * 100])
async def test_raw_samples_that_are_garbage_or_too_many_leave_the_rest(monkeypatch, raw):
    monkeypatch.setattr(jobs_module, "MAX_RAW_BYTES", 40)
    farm = Page(job_desk(BENCHED, raw))
    text = await farm.html("/jobs/bench-1")
    assert ("The raw samples of this job are gone" in text_of(text), len(plots(text))) == (True, 2)
    assert len(raw) < 40 or farm.kinds().count("artifact.get") == 1


async def test_raw_samples_that_are_nested_too_deeply_leave_the_rest():
    assert "The raw samples of this job are gone" in await Page(job_desk(BENCHED, b"[" * 30_000)).words("/jobs/bench-1")


async def test_plots_are_made_beside_the_daemon_s_loop(monkeypatch):
    where, known = [], bench_page.PAGE

    def watched(source):
        where.append(threading.current_thread())
        return known.plots(source)

    monkeypatch.setattr(bench_page, "PAGE", replace(known, plots=watched))
    assert len(plots(await Page(job_desk(BENCHED)).html("/jobs/bench-1"))) == 2
    assert where
    assert where[0] is not threading.current_thread()


@pytest.mark.parametrize(
    "kind", ["bench", "memory", "energy", "sweep", "sustain", "compare", "tune", "run", "shell", "lease"]
)
@pytest.mark.parametrize("result", [None, {}, {"certificate": None, "curve": []}])
async def test_results_of_another_release_are_shown_as_far_as_they_are_known(kind, result):
    await Page(job_desk(told(job(kind=kind), result=result))).html("/jobs/bench-1")


@pytest.mark.parametrize("state", ["running", "done"])
async def test_a_search_that_runs_draws_its_plots_anew_and_one_that_ended_does_not(state):
    progress = {"step": "searching", "tuning": {"trials": 3, "wanted": 8, "spent_s": 4.0}, "curve": [[1, 1, 1]]}
    search = job(kind="tune", state=state, ended_at=None if state == "running" else AT)
    text = await Page(job_desk(told(search, progress=progress))).html("/jobs/bench-1")
    assert (len(plots(text)), 'hx-get="/jobs/bench-1/plots"' in text) == (1, state == "running")


async def test_samples_so_far_have_the_words_of_their_verdict():
    for median_ms, half_width, said in ((None, None, ""), (1.5, 0.033, ": 1.500 ms, uncertain by ±3.3 %")):
        timing = {"count": 2, "median_ms": median_ms, "half_width": half_width, "wanted_half_width": 0.01}
        shown = told(job(state="running", ended_at=None), progress={"step": "timing", "timing": timing})
        assert f"2 samples{said}, goal ±1 %<" in await Page(job_desk(shown)).html("/jobs/bench-1")


async def test_the_beginning_of_an_id_leads_to_the_job():
    farm = Page(job_desk())
    answer = await farm.get("/jobs/ben")
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs/bench-1")
    assert (await farm.get("/jobs/nobody")).status_code == 404


async def test_only_files_that_the_result_names_can_be_had():
    result = {**BENCH, "stdout": "hi"}
    farm = Page(job_desk(told(job(), result=result), b"abcdef"))
    raw = await farm.get("/jobs/bench-1/files/samples")
    assert raw.content == b"abcdef"
    assert raw.headers["content-disposition"] == 'attachment; filename="bench-1.samples.json"'
    assert await farm.html("/jobs/bench-1/files/stdout") == "hi"
    assert json.loads(await farm.html("/jobs/bench-1/files/result")) == result
    for name in ("outputs", SHA, "..%2f..%2fetc%2fpasswd", "%2e%2e", "x"):
        assert (await farm.get(f"/jobs/bench-1/files/{name}")).status_code == 404, name


@pytest.mark.parametrize(("user", "offered"), [("", "Sign in"), ("bob", ""), ("ann", 'action="/jobs/bench-1/cancel"')])
async def test_a_job_is_cancelled_by_its_owner_s_form_only(user, offered):
    farm = Page(job_desk(told(running()), **{"job.cancel": {"jobs": [job(state="cancelled")], "changed": ["bench-1"]}}))
    if user:
        await farm.sign_in(user, Role.USER)
    text = await farm.html("/jobs/bench-1")
    assert ("/cancel" in text, offered in text) == (user == "ann", True)
    if user != "ann":
        return
    assert (await farm.order("/jobs/bench-1/cancel", {"csrf": "wrong"}))[0] == 400
    assert "job.cancel" not in farm.kinds()
    assert await farm.order("/jobs/bench-1/cancel") == (303, "/jobs/bench-1")
    assert "Job bench-1 is cancelled" in await farm.words("/jobs/bench-1")
    assert (await farm.order("/jobs/bench-1/prune"))[0] == 400


async def test_an_empty_log_says_so_in_the_part_that_its_first_line_replaces():
    empty = {"lines": [], "start": 0, "next": 0, "number": 1}
    farm = Page(job_desk(told(running()), **{"job.log_tail": empty}))
    text = await farm.html("/jobs/bench-1/log")
    assert re.search(r'class="log-tail"[^>]*hx-swap="outerHTML"><span[^>]*>The log is empty so far.</span></p>', text)
    assert text.count("The log is empty") == 1
    farm.desk.answers["job.log_tail"] = {**empty, "next": 9}
    assert "empty" not in await farm.part("/jobs/bench-1/log?after=0")


async def test_a_log_is_read_on_and_back():
    line = {"at": AT, "level": "error", "source": "worker", "text": HOSTILE}
    tail = {"lines": [line], "start": 100, "next": 200, "number": 1}
    farm = Page(job_desk(told(running()), **{"job.log_tail": tail}))
    whole, part = await farm.html("/jobs/bench-1/log"), await farm.part("/jobs/bench-1/log?after=200")
    assert farm.desk.asked_last("job.log_tail")["after"] == 200
    assert HOSTILE.replace(" ", "") in text_of(whole).replace(" ", "")
    told_by = [[words in text for words in ("<img", "before=100", "after=200", "<html")] for text in (whole, part)]
    assert told_by == [[False, True, True, True], [False, False, True, False]]


@pytest.mark.parametrize(("state", "said"), [("running", "1h 2m"), ("queued", "")])  # queued for its next attempt
async def test_a_running_job_s_time_goes_on_from_what_the_server_says(state, said):
    began = (NOW - timedelta(seconds=3725)).isoformat()
    text = await Page(job_desk(told(running(state=state, started_at=began)))).html("/jobs")
    assert re.findall(r'<span data-elapsed="37\d\d">([^<]*)</span>', text) == [said] * bool(said)


async def test_the_csv_has_all_pages_of_the_jobs_that_match():
    def listed(before="", **asked):
        assert (asked["user"], asked["state"]) == ("ann", ["failed"])
        return {"jobs": [job(id="bench-2" if before else "bench-3")], "before": "" if before else "bench-3"}

    answer = await Page(job_desk(**{"job.list": listed})).get("/jobs.csv?state=failed&user=ann")
    assert answer.headers["content-disposition"] == 'attachment; filename="jobs.csv"'
    assert [line.partition(",")[0] for line in answer.text.splitlines()] == ["id", "bench-3", "bench-2"]


async def test_a_csv_of_hardly_any_job_looks_back_no_further_than_documented():
    none_of_many = {"jobs": [], "before": "bench-1"}  # none of 2,000 jobs matches, and there are older ones
    farm = Page(job_desk(**{"job.list": none_of_many}))
    assert len((await farm.html("/jobs.csv?text=rare")).splitlines()) == 1
    assert len(farm.desk.asked) == jobs_module.CSV_PAGES


async def test_chosen_jobs_are_cancelled_and_what_is_refused_is_named():
    def cancel(job_id):
        if job_id == "of-bob":
            raise NotAllowedError("it is of bob")
        return {"jobs": [job(id=job_id)], "changed": [job_id] if job_id == "bench-1" else []}

    farm = Page(job_desk(told(running()), **{"job.cancel": lambda job: cancel(job)}))
    assert 'name="job"' not in await farm.html("/jobs")
    await farm.sign_in("ann", Role.USER)
    assert 'name="job" value="bench-1"' in await farm.html("/jobs?mine=1")
    assert farm.desk.asked_last("job.list")["user"] == "ann"
    form = {"to": "/jobs?mine=1", "job": ["bench-1", "bench-1", "ended", "of-bob"]}
    assert await farm.order("/chosen/cancel", form) == (303, "/jobs?mine=1")
    assert farm.session.notice == "1 of 3 jobs are cancelled. ended: it stays done. of-bob: it is of bob."
    for nothing in ({}, {"job": ""}):  # of no job, the verb would cancel all of this user's
        assert (await farm.order("/chosen/cancel", nothing))[0] == 400


@pytest.mark.parametrize(
    ("shown", "notice"),
    [
        (job(), "1 of 1 job is submitted again."),
        (running(), "0 of 1 job is submitted again. bench-1: it has not ended."),
    ],
)
async def test_chosen_jobs_run_again_once_they_have_ended(shown, notice):
    farm = Page(job_desk(told(shown), **{"job.submit": {"jobs": [{"id": "bench-2"}], "warnings": []}}))
    await farm.sign_in("ann", Role.USER)
    await farm.order("/chosen/again", {"job": "bench-1"})
    assert (farm.session.notice, "job.submit" in farm.kinds()) == (notice, shown == job())


@pytest.mark.parametrize(("array", "devices"), [("", 2), ("array-1", 1)])
async def test_an_ended_job_is_submitted_once_more(array, devices):
    shown = told(job(array=array))
    shown["spec"] |= {"devices": 2, "hold": True, "after": ["bench-0"]}
    submitted = {"jobs": [job(id="bench-2")], "array": "", "warnings": ["no phone is free"]}
    farm = Page(job_desk(shown, **{"job.submit": submitted}))
    assert "Run again" not in await farm.html("/jobs/bench-1")
    await farm.sign_in("ann", Role.USER)
    assert "Run again" in await farm.html("/jobs/bench-1")
    assert await farm.order("/jobs/bench-1/again") == (303, "/jobs/bench-2")
    caller, kind, fields = farm.desk.asked[-1]
    assert (caller.user, kind) == ("ann", "job.submit")
    assert fields["spec"] == {**shown["spec"], "devices": devices, "hold": False, "after": []}
    assert farm.session.notice == "Job bench-2 is submitted. Warning: no phone is free."
    shown["job"]["ended_at"] = None
    assert "Run again" not in await farm.html("/jobs/bench-1")


async def test_a_bench_shows_by_how_much_its_median_may_be_off_for_what():
    amounts = [
        {"code": "sampling", "cause": "285 samples scatter", "amount": 0.006},
        {"code": "burst", "cause": "4 samples in a row are outliers", "amount": 0.0021},
        {"code": "follows", "cause": "the model may not follow the clock", "amount": 1e-9},
    ]
    estimate = {**BENCH["estimate"], "half_width": 0.0081}
    result = {**BENCH, "estimate": estimate, "certificate": {**BENCH["certificate"], "amounts": amounts}}
    words = await Page(job_desk(told(job(), result=result))).words("/jobs/bench-1")
    assert "the model may not" not in words
    assert "285 samples scatter: ±0.6 % 4 samples in a row are outliers: ±0.21 %" in " ".join(words.split())


async def test_hostile_words_of_jobs_are_words():
    bad = job(name=HOSTILE, user=HOSTILE, selector=HOSTILE, on=HOSTILE, array=HOSTILE, state="failed",
              error={"message": HOSTILE, "hint": HOSTILE, "evidence": HOSTILE})  # fmt: skip
    reasons = [{"code": "x", "verdict": HOSTILE, "cause": HOSTILE}]
    result = {**BENCH, "certificate": {**BENCH["certificate"], "reasons": reasons, "notes": [HOSTILE]}}
    result["certificate"]["amounts"] = [{"cause": HOSTILE, "amount": HOSTILE}, {"cause": HOSTILE, "amount": 0.01}]
    farm = Page(job_desk(told(bad, result=result)))
    for path in ("/jobs", "/jobs/bench-1", f"/jobs?text={HOSTILE}&user={HOSTILE}&device={HOSTILE}"):
        assert "<img" not in await farm.html(path), path
