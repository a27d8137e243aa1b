"""What commands print: times, evidence, hints, and what the daemon answers, whole."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from farm.adb import program
from farm.adb.program import ServerProcess
from farm.cli import doctor, records
from farm.cli import doctor_host as host
from farm.cli.output import local_time, print_error, print_json, print_json_line
from farm.common.durations import many
from farm.common.errors import HostError, UserError
from farm.common.events import Event
from farm.compiler.records import RecordReading, RecordSet
from farm.config import FarmConfig
from farm.kinds.tune.summary import task_lines

AT = datetime(2026, 11, 20, 15, 19, 56, tzinfo=UTC)
ISO = "2026-11-20T15:19:56+00:00"


@pytest.mark.parametrize("printed", [print_json, print_json_line])
def test_times_are_iso_8601(printed, capsys):
    printed({"at": AT})
    assert json.loads(capsys.readouterr().out) == {"at": ISO}


def test_an_event_tells_nothing_of_how_it_is_kept():
    assert Event(7, AT, "job.done", "run-1", {"device": "pixel"}, drafted=True).to_wire() == {
        "seq": 7, "at": ISO, "kind": "job.done", "subject": "run-1", "data": {"device": "pixel"},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("evidence", "said"),
    [
        ('Traceback (most recent call last):\n  File "<string>", line 2\nModuleNotFoundError: no tvm\n', "no tvm"),
        ("adb: device offline\nsecond line\n", "adb: device offline"),
        ("TVM failed: no library\nand its frames", None),  # which repeats the message
        ("ValueError: TVM failed: no library", None),
    ],
)
def test_of_evidence_the_telling_line_is_shown(evidence, said, capsys):
    print_error(UserError("TVM failed: no library", evidence=evidence))
    error, *lines = capsys.readouterr().err.splitlines()
    assert (error, len(lines)) == ("error: TVM failed: no library", said is not None)
    assert said is None or ("evidence: " in lines[0] and lines[0].endswith(said))


@pytest.mark.parametrize(
    ("options", "shown"), [("", ["  evidence: one"]), (" --json", ["  evidence:", "    one", "    two"])]
)
def test_with_json_all_of_the_evidence_is_shown(answers, farm, options, shown):
    """Hints said that it is in --json, where no error is."""
    answers["usage"] = HostError("no", evidence="one\ntwo\n", hint="so")
    said = farm(f"usage{options}")
    assert (said.out, said.err.splitlines()) == ("", ["error: no", *shown, "  hint: so"])


@pytest.mark.parametrize(
    ("line", "none"),
    [("auth list", "no accounts: farm auth new NAME --role ROLE"), ("auth audit --user x", "no such changes")],
)
def test_a_table_without_rows_is_a_sentence(answers, farm, line, none):
    wrong = {"keys": 0, "tokens": 0}
    answers |= {"auth.list": {"accounts": [], "wrong": wrong}, "audit.list": {"rows": []}}
    assert str(farm(line)) == f"$ farm {line}\n{none}\n"


@pytest.mark.parametrize(("count", "words"), [(0, "0 trials"), (1, "1 trial"), (2, "2 trials")])
def test_numbers_agree(count, words):
    task = {"name": "dense", "trials": count, "latest_gflops": None, "best_gflops": None, "best_ms": None}
    assert many(count, "trial") == words
    assert [f"{words}, latest" in line for line in task_lines({"tasks": [task]})] == [True] * bool(count)


def test_the_time_of_a_kept_set_is_local_to_the_second(monkeypatch, farm):
    about = {"name": "net", "at": "2026-11-20T15:19:56.123456+00:00"}
    monkeypatch.setattr(records, "opened", lambda _: (about, RecordReading(RecordSet())))
    assert f"at        {local_time(ISO)}\n" in farm("records show 1").out


def test_doctor_names_only_servers_that_may_hold_usb_phones_and_tells_nobody_to_kill_them(monkeypatch):
    servers = [ServerProcess(pid, "ann", "adb", usb) for pid, usb in ((11, True), (12, False), (13, True))]
    monkeypatch.setattr(program, "other_servers", lambda _: servers)
    (finding,) = host.other_adb("tcp:5037")
    assert [f"pid {pid}" in finding.detail for pid in (11, 12, 13)] == [True, False, True]
    assert "kill" not in finding.fix
    del servers[2], servers[0]
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
    "name": "new", "names": ["new", "newer"], "hash": "ab" * 32, "abi": "arm64-v8a", "tvm_version": "0.27.0",
    "ffi_version": "0.1.14.post1", "files": [], "golden": ["cpu", "opencl"], "reason": "", "phones": 1, "of": 4,
    "state": "current", "trying": [], "toolchain": "default", "has_opencl": False, "size_bytes": 1, "takers": 1,
    "platform": "android",
}  # fmt: skip
ON_P1 = {"device": "p1", "since": ISO, "waits": "golden kernels run"}
ON_P2 = {"device": "p2", "since": "", "waits": "the end of its lease"}
HOST = {
    "name": "lab1", "state": "ok", "address": "10.0.0.1:9194", "beat_at": None, "silent_s": 1.0, "phones": 12,
    "version": "1.0", "protocol": 1, "drained": "", "reach": "",
}  # fmt: skip
STOPPED = {**HOST, "name": "lab2", "state": "stopped", "silent_s": None, "address": ""}
HOSTS = {
    "own": "lab1", "hosts": [HOST, STOPPED], "problems": ["no head decides"],
    "tokens": [{"name": "lab3", "expires_at": "2026-11-27T10:00:00+00:00", "made_by": "ann"}],
}  # fmt: skip
ACCOUNT = {"name": "ann", "role": "user", "token": "farm_x"}
COMMANDS = {
    "a bundle, current": ("bundle show new", "bundle.show", ROW),
    "a candidate": ("bundle show new", "bundle.show", ROW | {"state": "candidate"}),
    "a candidate on its phone": ("bundle show new", "bundle.show", ROW | {"state": "candidate", "trying": [ON_P1]}),
    "a bundle rolling out":
        ("bundle show new", "bundle.show", ROW | {"state": "rolling-out", "trying": [ON_P2, ON_P2]}),
    "a bundle with two names": ("bundle list", "bundle.list", {"bundles": [ROW]}),
    "a promotion": ("bundle promote new", "bundle.promote", ROW),
    "a promotion of a bundle without a name": ("bundle promote abab", "bundle.promote", ROW | {"name": ""}),
    "a rollback of a bundle without a name":
        ("bundle rollback abab", "bundle.rollback", ROW | {"name": "", "reason": "rolled back by ana"}),
    "a drain": ("host drain lab3", "host.drain", {"leases": []}),
    "a drain beside a lease": ("host drain lab3", "host.drain", {"leases": [{}]}),
    "a drain beside leases": ("host drain lab3", "host.drain", {"leases": [{}, {}]}),
    "the end of a drain": ("host drain lab3 --undo", "host.drain", {"leases": [{}]}),
    "hosts with open tokens": ("host list", "host.list", HOSTS),
    "a token says what it is for": ("auth new ann --role user --web", "auth.new", ACCOUNT),
    "another key": ("alias set 'a b' soc=x", "alias.set", {"alias": "a-b", "devices": ["pixel"], "no_match": ""}),
    "a key of no phone": ("alias set big soc=x", "alias.set", {"alias": "big", "devices": [], "no_match": "no y"}),
    "a key": ("alias set Fast soc=x", "alias.set", {"alias": "fast", "devices": ["pixel"], "no_match": ""}),
    "no phones": ("device list", "device.list", {"devices": []}),
    "no bundles": ("bundle list", "bundle.list", {"bundles": []}),
    "no records": ("records list", "records.list", {"sets": []}),
    "no leases": ("lease list", "lease.list", {"leases": [], "waiting": []}),
    "no reservations": ("reservation list", "reservation.list", {"reservations": []}),
    "no poisons": ("poison list", "poison.list", {"poison": [], "more": 0}),
    "no forwards": ("forward list", "forward.list", {"tunnels": []}),
    "words of others": ("explain job j1", "explain", {"lines": ["a\n\x1b[2J\x1b]0;title\x07\r\x9b31m\u202eb"]}),
}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_command(answers, farm, snapshot, name):
    line, verb, answer = COMMANDS[name]
    answers[verb] = answer
    snapshot(str(farm(line)))


def test_what_goes_on_is_told_by_the_clock_of_the_daemon(answers, farm):
    """This host's may be wrong."""
    told = {
        kind: json.loads(Path(f"tests/data/answers/{kind}.json").read_text()) for kind in ("job.list", "lease.list")
    }
    for answer in told.values():
        answer["now"] = "2027-11-20T12:00:00+00:00"
    told["job.list"]["jobs"][0] |= {"started_at": "2027-11-20T11:15:00+00:00", "ended_at": None}
    told["lease.list"]["leases"][0]["expires_at"] = "2027-11-20T12:30:00+00:00"
    answers |= told
    assert "45m" in str(farm("job list"))
    assert "(in 30m)" in str(farm("lease list"))
    answers["reservation.list"] = {"reservations": [], "now": "2027-11-20T12:00:00+00:00"}
    times = dict.fromkeys(("starts_at", "ends_at"), "2027-11-20T12:30:00+00:00")
    answers["reservation.add"] = {"reservation": {"id": "r", "user": "y", "note": "", **times}, "devices": ["pixel"]}
    farm("reservation add --on x --user y --for 2h --from +30m")
    assert answers.asked[-1][1]["starts_at"] == "2027-11-20T12:30:00+00:00"


def test_a_library_killed_at_a_time_that_is_over(answers, farm):
    row = {
        "artifact": "a" * 64, "kills": 2, "state": "refused", "last_at": "2026-11-20T15:19:56+00:00", "device": "pixel",
        "user": "ann", "job": "bench-1", "what": "server", "refused": True, "forgotten": False,
    }  # fmt: skip
    answers["poison.list"] = {"poison": [row], "more": 0}
    assert "2026-11-20 15:19:56" in str(farm("poison list"))
    assert "(in " not in str(farm("poison list"))
