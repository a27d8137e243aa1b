"""What commands print: times, evidence, hints; with a daemon whose answers are made up."""

import json
from datetime import UTC, datetime

import pytest
from typer.testing import CliRunner

from farm.adb import program
from farm.adb.program import ServerProcess
from farm.cli import doctor
from farm.cli import doctor_host as host
from farm.cli.main import app
from farm.cli.output import print_error, print_json, print_json_line
from farm.common.errors import UserError
from farm.common.events import Event

AT = datetime(2026, 11, 20, 15, 19, 56, tzinfo=UTC)


@pytest.fixture
def typed(monkeypatch, tmp_path):
    """Run a command of a user without a daemon."""
    monkeypatch.setenv("FARM_SOCKET", str(tmp_path / "none.sock"))

    def run(*arguments):
        return CliRunner().invoke(app, arguments)

    return run


@pytest.mark.parametrize("printed", [print_json, print_json_line])
def test_times_are_iso_8601(printed, capsys):
    printed({"at": AT})
    assert json.loads(capsys.readouterr().out) == {"at": "2026-11-20T15:19:56+00:00"}


def test_an_event_tells_nothing_of_how_it_is_kept():
    event = Event(7, AT, "job.done", "run-1", {"device": "pixel"}, drafted=True)
    assert event.to_wire() == {
        "seq": 7, "at": "2026-11-20T15:19:56+00:00", "kind": "job.done", "subject": "run-1",
        "data": {"device": "pixel"},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("evidence", "said"),
    [
        ('Traceback (most recent call last):\n  File "<string>", line 2\nModuleNotFoundError: no tvm\n', "no tvm"),
        ("adb: device offline\nsecond line\n", "adb: device offline"),
    ],
)
def test_of_evidence_the_telling_line_is_shown(evidence, said, capsys):
    print_error(UserError("it failed", evidence=evidence))
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "said:" in line]
    assert line.endswith(said)


@pytest.mark.parametrize("evidence", ["no library\nand its frames", "ValueError: TVM failed: no library"])
def test_evidence_that_repeats_the_message_is_not_shown(evidence, capsys):
    print_error(UserError("TVM failed: no library", evidence=evidence))
    assert capsys.readouterr().err == "error: TVM failed: no library\n"


def test_a_store_without_a_daemon_names_the_options_that_find_it(typed, tmp_path):
    result = typed("store", "check", "--state-dir", str(tmp_path / "nowhere"))
    assert isinstance(result.exception, UserError)
    assert "--state-dir" in result.exception.hint


def test_doctor_names_only_servers_that_may_hold_usb_phones_and_tells_nobody_to_kill_them(monkeypatch):
    servers = [ServerProcess(pid, "ann", "adb", usb) for pid, usb in ((11, True), (12, False), (13, True))]
    monkeypatch.setattr(program, "other_servers", lambda _: servers)
    (finding,) = host.other_adb("tcp:5037")
    assert "pid 11" in finding.detail
    assert "pid 13" in finding.detail
    assert "pid 12" not in finding.detail
    assert "kill" not in finding.fix
    monkeypatch.setattr(program, "other_servers", lambda _: servers[1:2])
    assert list(host.other_adb("tcp:5037")) == []


def test_doctor_names_the_running_daemons_toolchain():
    own, told = (
        doctor.Diagnosis("toolchain default", doctor.DoctorVerdict.OK, path) for path in ("/usr/bin", "/opt/farm")
    )
    adb = doctor.Diagnosis("adb", doctor.DoctorVerdict.OK, "")
    assert doctor.current([adb, own, told]) == [adb, told]
    assert doctor.current([own, adb]) == [own, adb]
