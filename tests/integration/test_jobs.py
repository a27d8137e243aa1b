"""Durable jobs on a whole farm: what a daemon's death, lost phones, orders and limits make of them."""

import pytest

from farm.common.errors import NoPhoneError, UserError
from farm.control.client import ControlClient
from tests.support.whole_farm import Story, phones, until_ready

pytestmark = pytest.mark.farm("oneplus-12", "galaxy-note20")


@pytest.fixture
def farm(whole):
    for phone in phones(whole):
        whole.lab.plug(phone.nickname)
    until_ready(whole)
    return whole


AGAIN = 3  # a shell line is not run again unless its owner allows for it
UNTIL_GO = "while [ ! -e /data/local/tmp/go ]; do sleep 0.1; done; echo done"


def submit(farm, command="true", *, key="", must_match=False, **spec):
    wanted = {"kind": "shell", "on": "android", "command": command, **spec}
    return farm.client.call("job.submit", spec=wanted, key=key, must_match=must_match)


def one(farm, command="true", **spec):
    (row,) = submit(farm, command, **spec)["jobs"]
    return row["id"]


def watch(farm, *jobs, since=0):
    """Every event of these jobs until they have ended, and the rows they ended as."""
    replies = list(farm.client.stream("job.watch", 60.0, jobs=list(jobs), since=since))
    return [reply for reply in replies if "seq" in reply], replies[-1]["jobs"]


def show(farm, job):
    return farm.client.call("job.show", job=job)


def phone_of(farm, started):
    """The phone of an attempt that has begun."""
    return next(each for each in phones(farm) if each.name == started["data"]["device"])


def go(farm, started):
    """Let an attempt at UNTIL_GO come to its end; the file goes with its lease."""
    phone_of(farm, started).shell("touch /data/local/tmp/go")


def kinds(events):
    return [event["kind"] for event in events if event["kind"] != "job.progress" and event["kind"][:6] != "lease."]


def test_from_submit_to_result_and_what_is_told_of_it(farm):
    job = one(farm, "echo hello; echo there >&2")
    events, (row,) = watch(farm, job)
    assert kinds(events) == ["job.submitted", "attempt.started", "attempt.ended", "job.done"]
    assert (row["state"], row["waits"], row["error"]) == ("done", "", None)
    shown = show(farm, job[:12])
    assert shown["job"]["on"] == shown["attempts"][0]["device"]
    assert (shown["result"]["exit_code"], shown["result"]["stdout"]) == (0, "hello\n")
    lines = [line for reply in farm.client.stream("job.logs", 20.0, job=job) for line in reply["lines"]]
    assert ("stdout", "hello") in {(line["source"], line["text"]) for line in lines}
    again, _ = watch(farm, job, since=events[1]["seq"])
    assert [event["seq"] for event in again] == [event["seq"] for event in events[2:]]


def test_a_log_is_followed_until_its_job_has_ended(farm):
    job = one(farm, "echo first; sleep 60")
    said = []
    with ControlClient(farm.socket) as follower:  # its own: a client drops what is no answer to its latest question
        for reply in follower.stream("job.logs", 60.0, job=job, follow=True):
            said += [line["text"] for line in reply["lines"]]
            if "first" in said and show(farm, job)["job"]["state"] == "running":
                farm.client.call("job.cancel", job=job)
    assert "first" in said
    assert show(farm, job)["job"]["state"] == "cancelled"


def test_a_killed_daemon_loses_no_job_and_doubles_no_result(farm):
    jobs = [one(farm, f"sleep 1; echo {number}", max_attempts=AGAIN) for number in range(4)]
    blocked = one(farm, after=[jobs[0]])
    held = one(farm, hold=True)
    (once,) = submit(farm, key="once")["jobs"]
    Story(farm, since=0).until("attempt.started", job=jobs[0])
    farm.daemon.kill()
    farm.daemon.start().close()
    (again,) = submit(farm, key="once")["jobs"]
    assert again["id"] == once["id"]
    events, rows = watch(farm, *jobs, blocked)
    assert [row["state"] for row in rows] == ["done"] * 5
    assert sorted(kinds(events)).count("job.done") == 5
    for number, job in enumerate(jobs):
        shown = show(farm, job)
        assert shown["result"]["stdout"] == f"{number}\n"
        states = [attempt["state"] for attempt in shown["attempts"]]
        assert states == ["interrupted"] * (len(states) - 1) + ["done"]
        fences = [attempt["fence"] for attempt in shown["attempts"]]
        assert fences == sorted(set(fences))
    assert show(farm, held)["job"]["state"] == "held"
    assert farm.client.call("job.cancel", job=held)["jobs"][0]["state"] == "cancelled"


def test_a_stopped_daemon_interrupts_and_goes_on(farm):
    job, story = one(farm, UNTIL_GO, max_attempts=AGAIN), Story(farm, since=0)
    story.until("attempt.started", job=job)
    farm.daemon.stop()
    farm.daemon.start().close()
    go(farm, story.until("attempt.started", job=job))
    _, (row,) = watch(farm, job)
    assert row["state"] == "done"
    assert [attempt["state"] for attempt in show(farm, job)["attempts"]] == ["interrupted", "done"]


def test_an_unplugged_phones_job_goes_to_the_other_one(farm):
    job, story = one(farm, UNTIL_GO, max_attempts=AGAIN), Story(farm, since=0)
    farm.lab.unplug(phone_of(farm, story.until("attempt.started", job=job)).nickname)
    go(farm, story.until("attempt.started", job=job))
    _, (row,) = watch(farm, job)
    assert row["state"] == "done"
    first, second = show(farm, job)["attempts"]
    assert (first["state"], first["error"]["fault"]) == ("failed", "phone")
    assert first["device"] != second["device"]


def test_cancelled_while_it_runs_its_command_ends(farm):
    job = one(farm, "sleep 4711")
    phone = phone_of(farm, Story(farm, since=0).until("attempt.started", job=job))
    (row,) = farm.client.call("job.cancel", job=job)["jobs"]
    assert (row["state"], row["error"]["code"]) == ("cancelled", "job_cancelled")
    until_ready(farm)
    assert "sleep 4711" not in phone.shell("ps -A -o ARGS")
    assert farm.client.call("job.cancel", job=job)["jobs"] == [row]


def test_limits_of_time(farm):
    late, slow = one(farm, "sleep 60", deadline_s=0.5), one(farm, "sleep 60", timeout_s=0.5)
    _, rows = watch(farm, late, slow)
    assert [(row["state"], row["error"]["code"]) for row in rows] == [
        ("failed", "deadline_missed"),
        ("failed", "timeout"),
    ]


def test_orders_about_an_array(farm):
    answer = submit(farm, devices="all", hold=True)
    array = answer["array"]
    assert {row["device"] for row in answer["jobs"]} == {phone.name for phone in phones(farm)}
    explained = farm.client.call("explain", what="job", name=answer["jobs"][0]["id"])
    assert any("it is held" in line for line in explained["lines"])
    assert ("it is held" in explained["waits"], explained["limits"], explained["devices"]) == (True, [], [])
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
    (warning,) = answer["warnings"]
    assert "nearest is adreno-750" in warning
    (row,) = answer["jobs"]
    assert "no phone matches" in show(farm, row["id"])["job"]["waits"]
    (listed,) = farm.client.call("job.list", jobs=[row["id"], "nobody"])["jobs"]
    assert "no phone matches" in listed["waits"]
    explained = farm.client.call("explain", what="job", name=row["id"])
    assert explained["waits"] == ""
    assert [f"{each['device']}: {each['reason']}" for each in explained["devices"]] == [
        line for line in explained["lines"] if line.startswith(tuple(phone.name for phone in phones(farm)))
    ]
    farm.client.call("job.cancel", job=row["id"])
    with pytest.raises(NoPhoneError):
        submit(farm, on="gpu=adreno-751", must_match=True)


@pytest.mark.parametrize(
    ("kind", "fields", "said"),
    [
        ("job.submit", {"spec": {"kind": "nonsense"}}, "there is no kind of job 'nonsense'"),
        ("job.submit", {"spec": {"kind": "shell", "on": "a", "command": "id", "after": ["x"]}}, "job or array 'x'"),
        ("job.submit", {"spec": {"kind": "shell", "on": "gpu=", "command": "id"}}, "'gpu=' has no value"),
        ("job.submit", {"spec": {}, "key": "with space"}, "key"),
        ("job.show", {"job": "nothing"}, "there is no job 'nothing'"),
        ("job.show", {"job": ""}, "job"),
        ("job.list", {"limit": 100000}, "limit"),
        ("job.watch", {"jobs": []}, "jobs"),
        ("job.cancel", {"job": "nothing"}, "there is no job 'nothing'"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_clear_line(farm, kind, fields, said):
    with pytest.raises(UserError) as refused:
        farm.client.call(kind, **fields)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
