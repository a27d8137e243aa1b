"""Jobs of kind shell on a virtual phone: what they print, how they end, and that nothing of them stays on the phone."""

import time

import pytest

from tests.support.whole_farm import Story, phones, until, until_ready

LIMIT_S = 60.0

pytestmark = pytest.mark.farm("galaxy-s9")


@pytest.fixture
def farm(whole):
    (phone,) = phones(whole)
    whole.lab.plug(phone.nickname)
    until_ready(whole)
    return whole


def submit(farm, command, **options):
    spec = {"kind": "shell", "on": "android", "command": command, "max_attempts": 1, **options}
    (row,) = farm.client.call("job.submit", spec=spec)["jobs"]
    return row["id"]


def ended(farm, job):
    for _ in farm.client.stream("job.watch", LIMIT_S, jobs=[job]):
        continue
    return farm.client.call("job.show", job=job)


def ran(farm, command, **options):
    return ended(farm, submit(farm, command, **options))


def log(farm, job):
    lines, after = [], 0
    while True:
        *pages, _ = farm.client.stream("job.logs", LIMIT_S, job=job, after=after)
        for page in pages:
            lines += page["lines"]
            after = page["next"]
        if not any(page["lines"] for page in pages):
            return [(line["source"], line["text"]) for line in lines]


def followed(farm, job, words):
    """Read a running job's log until it says `words`."""
    for page in farm.client.stream("job.logs", LIMIT_S, job=job, follow=True):
        if any(words in line["text"] for line in page.get("lines", ())):
            return
    raise AssertionError(f"the log ended without {words!r}")


def left(farm, phone, words, *, none):
    """Processes on the phone with these words in their arguments; waits for there to be none, or some."""
    deadline_s = time.monotonic() + LIMIT_S
    while True:
        found = [line for line in phone.shell("ps -A -o PID,ARGS").splitlines() if words in line]
        if bool(found) is not none or time.monotonic() > deadline_s:
            return found
        time.sleep(0.05)


def test_both_streams_come_as_lines_and_their_ends_into_the_result(farm):
    (phone,) = phones(farm)
    shown = ran(farm, "echo one; echo careful >&2; printf 'caf\\xc3\\xa9 \\xff'; cat")
    assert shown["job"]["state"] == "done"
    result = shown["result"]
    assert (result["exit_code"], result["truncated"], result["device"]) == (0, False, phone.name)
    assert (result["stdout"], result["stderr"]) == ("one\ncaf\u00e9 \ufffd", "careful\n")
    said = log(farm, shown["job"]["id"])
    assert ("stdout", "one") in said
    assert ("stderr", "careful") in said
    assert ("stdout", "caf\u00e9 \ufffd") in said


def test_a_failed_command_keeps_what_it_printed(farm):
    shown = ran(farm, "echo before; echo because >&2; exit 7")
    job = shown["job"]
    assert (job["state"], job["error"]["code"], job["error"]["fault"]) == ("failed", "command_failed", "user")
    assert job["error"]["message"] == "the command's exit code is 7"
    assert job["error"]["evidence"] == "because"
    assert f"farm logs {job['id']}" in job["error"]["hint"]
    assert (shown["result"]["exit_code"], shown["result"]["stdout"]) == (7, "before\n")
    assert ran(farm, "kill -9 $$")["result"]["exit_code"] == 137
    assert ran(farm, "no-such-program")["result"]["exit_code"] == 127


def test_a_command_past_its_time_is_killed_though_it_ignores_the_hangup(farm):
    (phone,) = phones(farm)
    shown = ran(farm, "trap '' HUP TERM; sleep 4321 & setsid sleep 4321 & echo started; sleep 4321", timeout_s=2)
    assert shown["job"]["error"]["message"] == "the command did not end within 2 s"
    assert shown["job"]["error"]["evidence"] == "started"
    assert left(farm, phone, "sleep 4321", none=True) == []
    assert ran(farm, "echo again")["job"]["state"] == "done"


def test_a_cancelled_command_is_killed_and_its_files_go(farm):
    (phone,) = phones(farm)
    job = submit(farm, "trap '' HUP; echo x >/data/local/tmp/left-behind; echo waiting; sleep 1234")
    followed(farm, job, "waiting")
    assert left(farm, phone, "sleep 1234", none=False)
    story = Story(farm)
    farm.client.call("job.cancel", job=job)
    assert ended(farm, job)["job"]["state"] == "cancelled"
    story.until("device.ready", subject=phone.name)  # cleaned and checked
    assert left(farm, phone, "sleep 1234", none=True) == []
    assert "left-behind" not in phone.shell("ls /data/local/tmp")


def test_a_flood_is_bounded_and_the_farm_answers_meanwhile(farm):
    job = submit(farm, "yes | head -c 6000000; yes noise | head -c 1000000 >&2; echo; echo the end")
    until(lambda: farm.client.call("job.show", job=job)["job"]["state"] not in ("queued", "running"))  # it answers
    shown = ended(farm, job)
    assert shown["job"]["state"] == "done", shown
    assert shown["result"]["truncated"]
    assert shown["result"]["stdout"].endswith("the end\n")
    assert len(shown["result"]["stdout"]) <= 64 << 10
    said = log(farm, job)
    assert any(text.endswith("the rest is not kept") for _, text in said)
    assert sum(len(text) for _, text in said) < 5 << 20


def test_an_unplugged_phone_is_the_phones_fault(farm):
    (phone,) = phones(farm)
    job = submit(farm, "echo waiting; sleep 999")
    followed(farm, job, "waiting")
    farm.lab.unplug(phone.nickname)
    error = ended(farm, job)["job"]["error"]
    assert error["fault"] == "phone"
    assert f"{phone.name} is gone" in error["message"]


def test_a_line_with_nul_is_refused(farm):
    assert "NUL" in ran(farm, "echo \0")["job"]["error"]["message"]
