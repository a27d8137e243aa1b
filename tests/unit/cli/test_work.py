"""What `bench`, `run`, `shell`, `submit` and `watch` share, against made-up answers."""

import os
import signal

import pytest

from farm import Client, ShellSpec
from farm.cli import work
from farm.cli.output import terminal
from farm.common.errors import DaemonUnreachableError, ExitCode, PhoneError, UserError
from tests.support.tiny_model import tiny_onnx
from tests.support.typed import LIMIT_S, until_printed

BENCHED = {
    "verdict": "trusted", "soc": "SM8650", "target": "cpu", "max_abs_error": 1e-6,
    "latency": {"count": 40, **{f"{each}_ms": 1.0 for each in ("min", "median", "mean", "max", "std", "low", "high")}},
    "certificate": {"count": 40},
    "estimate": {"median_ms": 1.0, "low_ms": 0.99, "high_ms": 1.01},
}  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_whatever_ends_a_waiting_command_cancels_its_jobs(daemon, typed, number):
    command = typed("shell", "--on", "android", "--devices", "all", "--", "id")
    daemon.until_called("job.watch")
    command.send_signal(number)
    assert command.wait(LIMIT_S) == ExitCode.INTERRUPTED
    assert "cancelled 2 jobs\n" in command.stderr.read()
    assert {shown["job"]["state"] for shown in daemon.jobs.values()} == {"cancelled"}


def test_ctrl_c_prints_what_is_finished_and_cancels_the_rest(daemon, typed, tmp_path):
    (tmp_path / "net.onnx").write_bytes(tiny_onnx())
    command = typed("bench", str(tmp_path / "net.onnx"), "--on", "android", "--devices", "all")
    daemon.until_called("job.watch")
    daemon.begin("job-0001", "pixel")
    daemon.end("job-0001", BENCHED)
    command.send_signal(signal.SIGINT)
    assert command.wait(LIMIT_S) == ExitCode.INTERRUPTED
    assert "cancelled 1 of 2 jobs\n" in command.stderr.read()
    assert [line.split()[:2] for line in command.stdout][:2] == [["PHONE", "MEDIAN"], ["pixel", "1.000"]]
    assert daemon.jobs["job-0002"]["job"]["state"] == "cancelled"


def test_ctrl_c_of_submit_prints_what_is_finished(daemon, typed, tmp_path):
    (tmp_path / "jobs.toml").write_text(
        "".join(f'[[job]]\nkind = "shell"\non = "android"\ncommand = "{name}"\n' for name in ("id", "ls"))
    )
    command = typed("submit", str(tmp_path / "jobs.toml"), "--wait")
    daemon.until_called("job.watch")
    daemon.begin("job-0001", "pixel")
    daemon.end("job-0001", {"exit_code": 0})
    command.send_signal(signal.SIGINT)
    assert command.wait(LIMIT_S) == ExitCode.INTERRUPTED
    states = [line.split()[2:4] for line in command.stdout][1:]
    assert states == [["pixel", "done"], ["-", "cancelled"]]


def test_two_signals_at_once_are_one(daemon, typed):
    """GNU timeout signals the command, then the group that it is in."""
    command = typed("shell", "--on", "android", "--devices", "all", "--", "id")
    daemon.until_called("job.watch")
    command.send_signal(signal.SIGINT)
    command.send_signal(signal.SIGINT)
    command.send_signal(signal.SIGTERM)
    assert command.wait(LIMIT_S) == ExitCode.INTERRUPTED
    assert command.stderr.read().splitlines()[-1] == "cancelled 2 jobs"
    assert {shown["job"]["state"] for shown in daemon.jobs.values()} == {"cancelled"}


def test_a_signal_seconds_after_the_first_does_not_wait_for_the_cancelling(monkeypatch, capsys):
    monkeypatch.setattr(terminal, "SAME_SIGNAL_S", 0.0)

    class Farm:
        def cancel(self, jobs):
            os.kill(os.getpid(), signal.SIGINT)

    with terminal.interruptible():
        work.cancel(Farm(), ["job-0001"])
    assert capsys.readouterr().err == "not waited for their end, so they may continue: farm job cancel job-0001\n"


def test_why_jobs_wait_is_asked_of_ones_own_only(daemon, monkeypatch, capsys, background):
    monkeypatch.setattr(work, "IDLE_S", 0.01)
    with Client(daemon.socket) as client:
        client.submit(ShellSpec(on="android", command="another's"))
        alone = client.submit(ShellSpec(on="android", command="id"))
        array = client.submit(ShellSpec(on="android", command="id", devices="all"))
        following = background(work.follow, client, [alone, array])
        daemon.until_called("job.list", 2)
        for job in (*alone.ids, *array.ids):
            daemon.end(job)
        following.result(LIMIT_S)
    assert {tuple(fields["jobs"]) for fields in daemon.listings} == {("job-0002", "array-2")}
    said = capsys.readouterr().err.splitlines()
    assert said == ["job-0002, job-0003 pixel, job-0004 galaxy wait: pixel is held by bob for 12 s"] or said == [
        "job-0004 galaxy, job-0003 pixel, job-0002 wait: pixel is held by bob for 12 s"
    ]


def test_a_daemon_that_stays_away_leaves_the_jobs_and_how_to_come_back(daemon, background):
    with Client(daemon.socket, restart_s=0.1, on_notice=lambda _: None) as client:
        submitted = client.submit(ShellSpec(on="android", command="id"))
        following = background(work.follow, client, [submitted])
        daemon.until_called("job.watch")
        daemon.kill()
        with pytest.raises(DaemonUnreachableError, match="the jobs stay in its queue") as raised:
            following.result(LIMIT_S)
    assert raised.value.hint == "once it is back: farm watch job-0001"


def test_watching_tells_each_jobs_end(daemon, typed):
    with Client(daemon.socket) as client:
        client.submit(ShellSpec(on="android", command="id", devices="all"))
    command = typed("watch", "job-0001", "job-0002")
    daemon.until_called("job.watch")
    daemon.begin("job-0001", "pixel")
    daemon.tell("lease.expiring", "L1", job="job-0001", left_s=60.0)
    daemon.end("job-0001", {"exit_code": 0})
    daemon.end("job-0002", error=PhoneError("galaxy was unplugged"))
    assert command.wait(LIMIT_S) == ExitCode.FAILED
    assert [line.split(" ", 1)[1] for line in command.stdout] == [
        "pixel: started\n", "pixel: the lease ends in 1m, unless it is extended\n", "pixel: done\n",
        "galaxy: failed: galaxy was unplugged\n",
    ]  # fmt: skip
    assert daemon.calls.count("job.watch") == 1  # the results need no second stream of all events


def test_no_jobs_are_no_table(daemon, typed):
    command = typed("job", "list")
    until_printed(command, "no jobs")
    assert command.wait(LIMIT_S) == 0
    assert command.stdout.read() == ""


@pytest.mark.parametrize("text", ["0", "1001", "9" * 5000])
def test_a_number_of_phones_out_of_range_is_told_by_the_option(text):
    with pytest.raises(UserError, match=f"--devices {text[:40]} is out of range"):
        work.device_count(text)
    assert (work.device_count("1000"), work.device_count("all")) == (1000, "all")
