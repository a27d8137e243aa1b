"""What commands print: times, evidence, hints; with a daemon whose answers are made up."""

import json
from datetime import UTC, datetime

import pytest
from typer.testing import CliRunner

from farm.adb import program
from farm.adb.program import ServerProcess
from farm.cli import doctor, records, runtimes
from farm.cli import doctor_host as host
from farm.cli.main import app
from farm.cli.output import local_time, print_error, print_json, print_json_line
from farm.common.durations import many
from farm.common.errors import UserError
from farm.common.events import Event
from farm.compiler.records import RecordReading, RecordSet
from farm.config import FarmConfig
from farm.kinds.tune.summary import task_lines

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
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "evidence:" in line]
    assert line.endswith(said)


@pytest.mark.parametrize("evidence", ["no library\nand its frames", "ValueError: TVM failed: no library"])
def test_evidence_that_repeats_the_message_is_not_shown(evidence, capsys):
    print_error(UserError("TVM failed: no library", evidence=evidence))
    assert capsys.readouterr().err == "error: TVM failed: no library\n"


def test_the_folder_where_one_is_has_its_name(monkeypatch, tmp_path, typed):
    monkeypatch.chdir(tmp_path)
    assert f"{tmp_path.name} has no tuning records" in str(typed("records", "show", ".").exception)


@pytest.mark.parametrize(("count", "words"), [(0, "0 trials"), (1, "1 trial"), (2, "2 trials")])
def test_numbers_agree(count, words):
    (line,) = task_lines({"tasks": [{"name": "dense", "trials": 3 - count, "latest_gflops": None,
                                     "best_gflops": None, "best_ms": None}]})  # fmt: skip
    assert many(count, "trial") == words
    assert f"{many(3 - count, 'trial')}, latest" in line


def test_the_time_of_a_kept_set_is_local_to_the_second(monkeypatch, typed):
    about = {"name": "net", "at": "2026-11-20T15:19:56.123456+00:00"}
    monkeypatch.setattr(records, "opened", lambda _: (about, RecordReading(RecordSet())))
    assert f"at        {local_time('2026-11-20T15:19:56+00:00')}\n" in typed("records", "show", "1").stdout


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


def test_doctor_names_the_running_daemons_toolchain(monkeypatch):
    own, told = (
        doctor.Diagnosis("toolchain default", doctor.DoctorVerdict.OK, path) for path in ("/usr/bin", "/opt/farm")
    )
    for name in ("linkers", "clock", "tools", "units"):
        monkeypatch.setattr(host, name, lambda *_: ())
    monkeypatch.setattr(host, "toolchains", lambda _: [own])
    for of_daemon, shown in (([told], told), ([], own)):
        monkeypatch.setattr(doctor, "_daemon", lambda _, found=of_daemon: found)
        assert [each for each in doctor.checks(FarmConfig()) if each.check == own.check] == [shown]


ROW = {
    "name": "new",
    "names": ["new", "newer"],
    "hash": "ab" * 32,
    "abi": "arm64-v8a",
    "tvm_version": "0.27.0",
    "ffi_version": "0.1.14.post1",
    "files": [],
    "golden": [],
    "reason": "",
    "phones": 1,
    "of": 4,
}


@pytest.mark.parametrize(
    ("state", "trying", "said"),
    [
        ("candidate", [], "candidate, waits for an idle phone"),
        ("candidate", [{"device": "p1", "since": AT.isoformat(), "waits": "golden kernels run"}],
         f"candidate, on p1 since {local_time(AT.isoformat())}: golden kernels run"),
        ("rolling-out", [{"device": "p2", "since": "", "waits": "the end of its lease"}] * 2,
         "rolling out (1 of 4), on p2: the end of its lease; on p2: the end of its lease"),
        ("current", [], "current"),
    ],
)  # fmt: skip
def test_a_candidate_names_the_phones_that_try_it(monkeypatch, state, trying, said):
    monkeypatch.setattr(runtimes, "call", lambda *_, **__: {**ROW, "state": state, "trying": trying})
    assert CliRunner().invoke(app, ["bundle", "show", "new"]).stdout.splitlines()[0].endswith(f": {said}")


def test_a_bundle_is_listed_with_all_its_names(monkeypatch):
    facts = {"toolchain": "default", "has_opencl": False, "size_bytes": 1, "state": "current"}
    monkeypatch.setattr(runtimes, "call", lambda *_, **__: {"bundles": [{**ROW, **facts}]})
    assert "new, newer" in CliRunner().invoke(app, ["bundle", "list"]).stdout.splitlines()[1]


def test_a_bundle_shows_its_golden_kernels(monkeypatch):
    monkeypatch.setattr(runtimes, "call", lambda *_, **__: {**ROW, "state": "current", "golden": ["cpu", "opencl"]})
    lines = CliRunner().invoke(app, ["bundle", "show", "new"]).stdout.splitlines()
    assert lines[1] == "of TVM 0.27.0 with FFI 0.1.14.post1"
    assert lines[-1] == "golden kernels: cpu, opencl"


def test_a_promotion_says_how_many_phones_take_the_bundle(monkeypatch):
    monkeypatch.setattr(runtimes, "call", lambda *_, **__: {**ROW, "takers": 1, "platform": "android"})
    (line,) = CliRunner().invoke(app, ["bundle", "promote", "new"]).stdout.splitlines()
    assert line == "new is current: 1 phone (arm64-v8a, android) will take it"


def test_a_bundle_without_a_name_is_named_by_its_hash(monkeypatch):
    answer = {**ROW, "name": "", "hash": "ab" * 32, "takers": 1, "platform": "android", "reason": "rolled back by ana"}
    monkeypatch.setattr(runtimes, "call", lambda *_, **__: answer)
    lines = [CliRunner().invoke(app, ["bundle", order, "abab"]).stdout for order in ("promote", "rollback")]
    assert [line.split(" is ")[0] for line in lines] == ["abababababab", "abababababab"]
