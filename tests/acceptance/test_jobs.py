"""Durable jobs on a whole farm: what they print, how they end, and what dying daemons and lost phones make of them."""

import json

import numpy as np
import pytest

from farm.common.errors import ExitCode, NoPhoneError
from farm.control.client import ControlClient
from tests.support.whole_farm import Phone, Story, phones, plug_all, refused, until, until_ready

LIMIT_S = 60.0
QUOTA = 8
pytestmark = pytest.mark.farm("oneplus-12", "galaxy-note20", config=f"[user.root]\njobs = {QUOTA}\n")


@pytest.fixture
def farm(whole):
    plug_all(whole)
    until_ready(whole)
    return whole


def submit(farm, command="true", *, key="", must_match=False, **spec):
    wanted = {"kind": "shell", "on": "android", "command": command, **spec}
    return farm.client.call("job.submit", spec=wanted, key=key, must_match=must_match)


def one(farm, command="true", **spec):
    (row,) = submit(farm, command, **spec)["jobs"]
    return row["id"]


def watch(farm, *jobs, since=0):
    """Every event of these jobs until they have ended, and the rows they ended as."""
    replies = list(farm.client.stream("job.watch", LIMIT_S, jobs=list(jobs), since=since))
    return [reply for reply in replies if "seq" in reply], replies[-1]["jobs"]


def show(farm, job):
    return farm.client.call("job.show", job=job)


def ran(farm, command, **spec):
    """A job that has ended."""
    job = one(farm, command, max_attempts=1, **spec)
    watch(farm, job)
    return show(farm, job)


def log(farm, job):
    lines, after = [], 0
    while True:
        *pages, _ = farm.client.stream("job.logs", LIMIT_S, job=job, after=after)
        for page in pages:
            lines += [(line["source"], line["text"]) for line in page["lines"]]
            after = page["next"]
        if not any(page["lines"] for page in pages):
            return lines


def phone_of(farm, started) -> Phone:
    """The phone of an attempt that has begun."""
    return next(each for each in phones(farm) if each.name == started["data"]["device"])


def kinds(events):
    return [event["kind"] for event in events if event["kind"] != "job.progress" and event["kind"][:6] != "lease."]


def test_from_submit_to_result_and_what_is_told_of_it(farm):
    job = one(farm, "echo one; echo careful >&2; printf 'caf\\xc3\\xa9 \\xff'; cat")
    events, (row,) = watch(farm, job)
    assert kinds(events) == ["job.submitted", "attempt.started", "attempt.ended", "job.done"]
    assert (row["state"], row["waits"], row["error"]) == ("done", "", None)
    shown = show(farm, job[:12])
    result = shown["result"]
    assert shown["job"]["on"] == shown["attempts"][0]["device"] == result["device"]
    assert (result["exit_code"], result["truncated"]) == (0, False)
    assert (result["stdout"], result["stderr"]) == ("one\ncaf\u00e9 \ufffd", "careful\n")
    assert {("stdout", "one"), ("stderr", "careful"), ("stdout", "caf\u00e9 \ufffd")} <= set(log(farm, job))
    again, _ = watch(farm, job, since=events[1]["seq"])
    assert [event["seq"] for event in again] == [event["seq"] for event in events[2:]]


def test_a_failed_command_keeps_what_it_printed(farm):
    shown = ran(farm, "echo before; echo because >&2; exit 7")
    job = shown["job"]
    assert (job["state"], job["error"]["code"], job["error"]["fault"]) == ("failed", "command_failed", "user")
    assert (job["error"]["message"], job["error"]["evidence"]) == ("the command's exit code is 7", "because")
    assert f"farm logs {job['id']}" in job["error"]["hint"]
    assert (shown["result"]["exit_code"], shown["result"]["stdout"]) == (7, "before\n")
    assert ran(farm, "kill -9 $$")["result"]["exit_code"] == 137
    assert "NUL" in ran(farm, "echo \0")["job"]["error"]["message"]


def test_a_command_past_its_time_is_killed_though_it_ignores_the_hangup(farm):
    shown = ran(farm, "trap '' HUP TERM; sleep 4321 & setsid sleep 4321 & echo started; sleep 4321", timeout_s=2)
    error = shown["job"]["error"]
    assert (error["message"], error["evidence"]) == ("the command did not end within 2 s", "started")
    until_ready(farm)
    assert not any("sleep 4321" in phone.shell("ps -A -o ARGS") for phone in phones(farm))


def test_a_log_is_followed_until_its_job_is_cancelled_and_nothing_is_left_of_it(farm):
    job = one(farm, "trap '' HUP; echo x >/data/local/tmp/left-behind; echo first; sleep 1234")
    phone = phone_of(farm, Story(farm, since=0).until("attempt.started", job=job))
    said, cancelled = [], None
    with ControlClient(farm.socket) as follower:  # its own: a client drops what is no answer to its latest question
        for reply in follower.stream("job.logs", LIMIT_S, job=job, follow=True):
            said += [line["text"] for line in reply["lines"]]
            if "first" in said and not cancelled:
                assert "sleep 1234" in phone.shell("ps -A -o ARGS")
                cancelled = farm.client.call("job.cancel", job=job)["jobs"]
    ((state, code),) = [(row["state"], row["error"]["code"]) for row in cancelled]
    assert (state, code) == ("cancelled", "job_cancelled")
    assert farm.client.call("job.cancel", job=job)["jobs"] == cancelled
    until_ready(farm)  # cleaned and checked
    assert "sleep 1234" not in phone.shell("ps -A -o ARGS")
    assert "left-behind" not in phone.shell("ls /data/local/tmp")


def test_a_flood_is_bounded_and_the_farm_answers_meanwhile(farm):
    job = one(farm, "yes | head -c 6000000; yes noise | head -c 1000000 >&2; echo; echo the end")
    until(lambda: show(farm, job)["job"]["state"] not in ("queued", "running"))  # it answers
    result = show(farm, job)["result"]
    assert result["truncated"]
    assert result["stdout"].endswith("the end\n")
    assert len(result["stdout"]) <= 64 << 10
    said = log(farm, job)
    assert any(text.endswith("the rest is not kept") for _, text in said)
    assert sum(len(text) for _, text in said) < 5 << 20


def test_orders_about_an_array(farm):
    answer = submit(farm, devices="all", hold=True)
    array = answer["array"]
    assert {row["device"] for row in answer["jobs"]} == {phone.name for phone in phones(farm)}
    explained = farm.client.call("explain", what="job", name=answer["jobs"][0]["id"])
    assert any("it is held" in line for line in explained["lines"])
    assert {row["state"] for row in farm.client.call("job.resume", job=array)["jobs"]} <= {"queued", "running"}
    _, rows = watch(farm, array)
    assert [(row["state"], row["on"] == row["device"]) for row in rows] == [("done", True)] * 2
    listed = farm.client.call("job.list", array=array, limit=1)
    assert (len(listed["jobs"]), listed["more"]) == (1, True)
    assert "result" not in listed["jobs"][0]
    for row in farm.client.call("job.list", array=array, results=True)["jobs"]:
        assert row["result"] == {"exit_code": 0}
        assert row["submitted_at"] <= row["started_at"] <= row["ended_at"]


def test_what_no_phone_matches_waits_or_is_refused(farm):
    answer = submit(farm, on="gpu=adreno-751")
    (warning,), (row,) = answer["warnings"], answer["jobs"]
    assert "nearest is adreno-750" in warning
    (listed,) = farm.client.call("job.list", jobs=[row["id"], "nobody"])["jobs"]
    assert "no phone matches" in listed["waits"]
    explained = farm.client.call("explain", what="job", name=row["id"])
    assert {each["device"] for each in explained["devices"]} == {phone.name for phone in phones(farm)}
    farm.client.call("job.cancel", job=row["id"])
    with pytest.raises(NoPhoneError):
        submit(farm, on="gpu=adreno-751", must_match=True)


def held(farm, *options):
    done = farm.farm("shell", "--on", "android", "--hold", *options, "--", "true")
    assert done.returncode == 0, done
    return done.stdout.split()


def test_many_are_cancelled_at_once_and_counted(farm):
    array = submit(farm, devices="all", hold=True)["array"]
    assert farm.farm("job", "cancel", "--array", array).stdout == "cancelled 2 jobs\n"
    alone = held(farm) + held(farm)
    assert farm.farm("job", "cancel", "--mine", "--state", "queued").stdout == "cancelled 0 jobs\n"
    assert farm.farm("job", "cancel", "--state", "held").stdout == "cancelled 2 jobs\n"
    assert show(farm, alone[0])["job"]["state"] == "cancelled"
    submit(farm, key="k1", hold=True)
    assert farm.farm("job", "cancel", "--key", "k1").stdout == "cancelled 1 job\n"
    refused(farm.farm("job", "cancel", "--key", "k2"), ExitCode.USAGE, "'k2'")
    refused(farm.farm("job", "cancel", "--state", "done"), ExitCode.USAGE, "has ended")
    refused(farm.farm("job", "cancel", alone[0], "--mine"), ExitCode.USAGE, "at once")


def test_over_the_quota_is_not_allowed(farm):
    for _ in range(QUOTA):
        held(farm)
    waiting = ("shell", "--on", "android", "--hold", "--", "true")
    refused(farm.farm(*waiting), ExitCode.NOT_ALLOWED, f"limit of {QUOTA}")
    assert farm.farm("job", "cancel", "--mine").stdout == f"cancelled {QUOTA} jobs\n"
    refused(farm.farm("shell", "--on", "android", "--priority", "9", "--", "true"), ExitCode.NOT_ALLOWED, "priority")


def test_outputs_are_fetched_later(farm, model, tmp_path):
    result = json.loads(farm.farm("run", str(model), "--on", "android", "--json").stdout)["results"][0]
    assert farm.farm("job", "output", result["job"], "-o", str(tmp_path / "out.npz")).returncode == 0
    assert np.load(tmp_path / "out.npz").files
    done = farm.farm("job", "output", result["job"], "-o", str(tmp_path / "out.pftrace"))
    refused(done, ExitCode.USAGE, "a run job has no trace")
    page = farm.farm("job", "show", result["job"]).stdout
    assert model.name in page
    assert "{" not in page
    ended = ran(farm, "echo said")["job"]["id"]
    assert farm.farm("job", "output", ended, "-o", str(tmp_path / "said")).returncode == 0
    assert (tmp_path / "said").read_text() == "said\n"
    for order in ("cancel", "hold", "resume"):
        assert farm.farm("job", order, ended).stdout == f"{ended} is done: nothing was done\n"
    refused(farm.farm("logs", ended, "--attempt", "5"), ExitCode.USAGE, "has had 1 attempt")
    (waiting,) = held(farm)
    refused(farm.farm("job", "output", waiting, "-o", str(tmp_path / "none")), ExitCode.USAGE, waiting)
    farm.client.call("job.cancel", job=waiting)
