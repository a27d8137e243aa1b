"""`farm lease acquire` and `farm lease run` against made-up answers: what survives, and what they leave behind."""

import json
import signal
from datetime import UTC, datetime, timedelta

import pytest
from typer.main import get_command

from farm import Client
from farm.cli.main import app
from farm.client import AsyncClient
from farm.common.errors import ExitCode
from farm.kinds.lease import LeaseSpec
from farm.kinds.lease.command import NOT_FOUND, _give_back, until
from farm.model.job import JobState
from farm.model.specs import fields_of
from tests.support.typed import LIMIT_S, until_printed


def test_acquiring_outlives_the_daemon_and_finds_a_grant_that_nobody_heard_of(daemon, typed):
    command = typed("lease", "acquire", "--on", "android")
    until_printed(command, "waits: pixel is held by bob")
    daemon.kill()
    until_printed(command, "waiting up to 60 s")
    daemon.start()
    daemon.grant("job-0001", "pixel", tell=False)
    assert command.wait(LIMIT_S) == 0
    assert command.stdout.readline() == "device  pixel (S1)\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_whoever_gives_up_waiting_leaves_no_job(daemon, typed, number):
    command = typed("lease", "acquire", "--on", "android", "--json")
    daemon.until_called("job.watch")
    command.send_signal(number)
    assert command.wait(LIMIT_S) == ExitCode.INTERRUPTED
    assert "cancelled 1 job\n" in command.stderr.read()
    with Client(daemon.socket) as client:
        assert client.job("job-0001").job.state is JobState.CANCELLED


@pytest.mark.parametrize("words", [("acquire", "--on", "android"), ("run", "--on", "android", "--", "id")])
def test_a_phone_that_only_an_operator_can_free_is_not_waited_for(daemon, typed, words):
    daemon.operator = "farm device release pixel"
    command = typed("lease", *words)
    assert command.wait(LIMIT_S) == ExitCode.NO_PHONE
    assert command.stderr.read().splitlines() == [
        "error: only an operator can free a phone: pixel is held by bob for 12 s",
        "  hint: farm device release pixel (an operator), or choose others: farm device list",
    ]
    assert daemon.jobs["job-0001"]["job"]["state"] == "cancelled"


def test_a_command_that_is_not_there_waits_for_no_phone(daemon, typed):
    command = typed("lease", "run", "--on", "android", "--", "no-such-command")
    assert command.wait(LIMIT_S) == NOT_FOUND
    assert command.stderr.read() == "error: no-such-command: command not found\n"
    with Client(daemon.socket) as client:
        assert not client.jobs()


@pytest.mark.parametrize("words", ["acquire --on android --for 400d", "run --on android --for 8d -- id"])
def test_a_lease_that_is_too_long_is_refused_in_the_words_it_was_asked_in(typed, words):
    command = typed("lease", *words.split())
    assert command.wait(LIMIT_S) == ExitCode.USAGE
    assert command.stderr.read().startswith(f"error: --for {words.split()[4]} is out of range\n  hint: 1s to 7d\n")


def test_a_lease_that_cannot_be_told_of_is_not_kept(daemon, typed):
    command = typed("lease", "acquire", "--on", "android", "--json")
    daemon.until_called("job.watch")
    daemon.grant("job-0001", "pixel", tell=False)
    del daemon.held["job-0001"]["serial"]
    daemon.tell("job.progress", "job-0001", step="granted")
    assert command.wait(LIMIT_S) == ExitCode.FAILED
    assert "has no field 'serial'" in command.stderr.read()
    assert daemon.jobs["job-0001"]["job"]["state"] == "cancelled"


def test_a_commands_exit_code_outlives_the_daemon_and_its_lease_is_given_back(daemon, typed):
    command = typed("lease", "run", "--on", "android", "--", "sh", "-c", "read line; exit $line")
    daemon.until_called("job.watch")
    daemon.grant("job-0001", "pixel")
    until_printed(command, "pixel is yours")
    daemon.kill()
    until_printed(command, "waiting up to 60 s")
    command.stdin.write("7\n")
    command.stdin.flush()
    daemon.start()
    assert command.wait(LIMIT_S) == 7
    assert daemon.jobs["job-0001"]["job"]["state"] == "done"


def test_the_options_are_those_of_the_spec():
    group = get_command(app).get_command(None, "lease")
    declared = {each.help.flag or f"--{name}": each.help.text for name, each in fields_of(LeaseSpec).items()}
    offered = {each.opts[0]: each.help for each in group.get_command(None, "acquire").params}
    for flag in ("--for", "--note", "--priority", "--tuning"):
        assert offered[flag] == declared[flag]


async def test_a_daemon_that_stays_away_is_said_when_a_lease_is_given_back(daemon, capsys):
    async with AsyncClient(daemon.socket, restart_s=0.1, on_notice=lambda _: None) as client:
        await client.status()
        daemon.held["x"] = dict.fromkeys(("job", "lease", "device", "serial", "tvm_host", "tvm_key"), "pixel") | {
            "tvm_port": 1, "adb_port": 2, "expires_at": "2999-01-01T00:00:00+00:00",
        }  # fmt: skip
        held = await client.lease_show("pixel")
        daemon.kill()
        await _give_back(held)
    assert "pixel is not given back: no farm daemon listens" in capsys.readouterr().err


async def test_the_time_left_is_by_the_farms_clock(daemon):
    now = datetime.now(UTC) + timedelta(hours=2)
    daemon.held["x"] = dict.fromkeys(("job", "lease", "device", "serial", "tvm_host", "tvm_key"), "pixel") | {
        "tvm_port": 1, "adb_port": 2, "expires_at": (now + timedelta(minutes=30)).isoformat(), "now": now.isoformat(),
    }  # fmt: skip
    async with AsyncClient(daemon.socket) as client:
        held = await client.lease_show("pixel")
    assert held.expires_at - held.now <= timedelta(minutes=30)
    assert "2h" not in until(held)


def test_a_command_hears_that_its_lease_ends_soon_and_ends_with_it(daemon, typed):
    command = typed("lease", "run", "--on", "android", "--", "sleep", "600")
    daemon.until_called("job.watch")
    daemon.grant("job-0001", "pixel")
    daemon.tell("lease.expiring", "L", job="job-0001", expires_at="2999-01-01T00:00:00+00:00")
    until_printed(command, "the lease on pixel ends in ")
    daemon.end("job-0001", {"ended": "its time is over"})
    until_printed(command, "sleep is ended too")
    assert command.wait(LIMIT_S) == 128 + signal.SIGTERM


def test_a_signal_is_the_commands(daemon, typed):
    command = typed("lease", "run", "--on", "android", "--", "sh", "-c", "trap 'exit 9' TERM; echo ready; read line")
    daemon.until_called("job.watch")
    daemon.grant("job-0001", "pixel")
    assert command.stdout.readline() == "ready\n"
    command.send_signal(signal.SIGTERM)
    assert command.wait(LIMIT_S) == 9
    assert daemon.jobs["job-0001"]["job"]["state"] == "done"


def test_showing_prints_what_acquiring_did(daemon, typed):
    acquired = typed("lease", "acquire", "--on", "android", "--json")
    daemon.until_called("job.watch")
    daemon.grant("job-0001", "pixel")
    assert acquired.wait(LIMIT_S) == 0
    shown = typed("lease", "show", "pixel", "--json")
    assert shown.wait(LIMIT_S) == 0
    assert json.load(acquired.stdout) == json.load(shown.stdout) == daemon.held["job-0001"]
