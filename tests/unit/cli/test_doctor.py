"""What `farm doctor` says of a daemon: one on this host, one elsewhere, one that cuts a port's power."""

import ast
import socket
from pathlib import Path

import pytest

from farm.cli import doctor
from farm.common.doctor_findings import DoctorVerdict, judge_folder, of_error
from farm.common.errors import DaemonUnreachableError, UserError
from farm.config import FarmConfig, load
from farm.control.address import ClientKey, Remote
from tests.support.pages import ROOT

NAME = "pixel"
STATUS = {"seq": 4, "pid": 1, "version": "0.1.0", "problems": ["the clock jumped"], "tracker": {"pid": 1}}
ADDED = {"name": "tvm28", "python": "/opt/tvm28/bin/python", "up": True, "versions": {"apache-tvm": "0.28"}}


def ended(subject, action="power-cycle", outcome="repaired"):
    return {"kind": "recovery.ended", "subject": subject, "data": {"action": action, "outcome": outcome, "detail": "d"}}


HELD = UserError("bob holds pixel", hint="farm lease kick pixel")


@pytest.mark.parametrize(
    ("events", "verdict", "said"),
    [
        ([ended("other"), ended(NAME, action="reboot", outcome="failed"), ended(NAME)], DoctorVerdict.OK, NAME),
        ([ended(NAME, outcome="failed")], DoctorVerdict.FAIL, f"{NAME}: failed: d"),
        ([TimeoutError()], DoctorVerdict.FAIL, "SERIAL: nothing is known"),
        ([DaemonUnreachableError("the daemon has gone")], DoctorVerdict.FAIL, "SERIAL: the daemon has gone"),
        ([], DoctorVerdict.FAIL, "SERIAL: the daemon ended"),
        (HELD, DoctorVerdict.FAIL, "SERIAL: bob holds pixel"),
    ],
)
def test_a_phone_whose_power_is_cut_by_its_serial_comes_back_or_is_a_finding(answers, events, verdict, said):
    cycled = events if events is HELD else {"name": NAME, "beside": []}
    answers |= {"status": STATUS, "device.power_cycle": cycled, "events": [*(events if events is not HELD else ()), {}]}
    found = doctor._cut("SERIAL")
    assert (found.check, found.verdict, said in found.detail) == ("power cut", verdict, True)
    assert events is not HELD or found.fix == HELD.hint


def test_of_a_daemon_elsewhere_only_what_it_says_is_told_and_marked(tmp_path, answers, monkeypatch):
    answers |= {
        "status": STATUS, "toolchain.list": {"toolchains": [ADDED]}, "bundle.list": {"bundles": []},
        "doctor": {"findings": [{"check": "usb", "verdict": "ok", "detail": "switches", "fix": ""}]},
    }  # fmt: skip
    monkeypatch.setattr("farm.control.address.find", lambda: Remote("lab", 9192, ClientKey("ann", "", "", "")))
    monkeypatch.setattr(doctor, "call", lambda kind, **fields: next(answers.replies(kind, fields)).fields)
    monkeypatch.setattr(doctor, "listeners", lambda *_: pytest.fail("this is another host"))
    (tmp_path / "farm.toml").touch()
    found = list(doctor._daemon(load(tmp_path / "farm.toml", environ={})))
    assert [each.check for each in found] == [
        "lab: host", "lab: toolchain tvm28", "lab: bundles", "lab: daemon", "lab: daemon", "lab: usb",
    ]  # fmt: skip
    assert "tcp://lab:9192" in found[0].detail


def test_a_daemon_elsewhere_that_does_not_answer_must_be_repaired(tmp_path, answers, monkeypatch):
    answers["status"] = DaemonUnreachableError("away")
    monkeypatch.setattr("farm.control.address.find", lambda: Remote("lab", 9192, ClientKey("ann", "", "", "")))
    assert [each.verdict for each in doctor._daemon(FarmConfig())] == [DoctorVerdict.FAIL]


@pytest.mark.parametrize(("ran_before", "verdict"), [(True, DoctorVerdict.FAIL), (False, DoctorVerdict.WARN)])
def test_a_dead_daemon_must_be_repaired_and_one_that_never_ran_need_not(tmp_path, answers, ran_before, verdict):
    answers["status"] = DaemonUnreachableError("dead")
    state = tmp_path / "state"
    if ran_before:
        state.mkdir()
    config = load(None, environ={"FARM_STATE_DIR": str(state), "FARM_RUNTIME_DIR": str(tmp_path)})
    found = {each.check: each.verdict for each in doctor._daemon(config)}
    assert found["daemon"] is verdict
    assert found["adb server"] is (DoctorVerdict.FAIL if ran_before else DoctorVerdict.OK)


def test_files_that_the_services_user_may_not_use_are_named_and_its_database_is_left_alone(tmp_path, answers):
    """As root leaves them. A look at the database would make more of them."""
    answers["status"] = DaemonUnreachableError("dead")
    (tmp_path / "farm.db").write_text("no database")
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "lab.key").touch(0o400)
    config = load(None, environ={"FARM_STATE_DIR": str(tmp_path), "FARM_RUNTIME_DIR": str(tmp_path)})
    (found,) = [each for each in doctor._local_daemon(config) if each.check == "database"]
    assert (found.verdict, "lab.key" in found.detail, "chown" in found.fix) == (DoctorVerdict.FAIL, True, True)


def test_a_gate_that_is_gone_must_be_repaired(tmp_path, answers, monkeypatch):
    answers |= {"toolchain.list": {"toolchains": []}, "bundle.list": {"bundles": []}, "doctor": {"findings": []}}
    status = STATUS | {"tracker": {"pid": 0}}
    assert doctor.NO_GATE in doctor._found_by_daemon(status)
    assert doctor.NO_GATE not in doctor._found_by_daemon(STATUS)
    behind_gate = load(None, environ={"FARM_TVM__GATE": str(tmp_path / "gate.sock"), "FARM_WEB__ENABLED": "false"})
    assert list(doctor.listeners(behind_gate)) == [doctor.NO_GATE]
    with socket.socket(socket.AF_UNIX) as gate:
        gate.bind(behind_gate.tvm.gate)
        assert list(doctor.listeners(behind_gate)) == []


def test_toolchains_are_those_of_the_daemon_added_ones_too():
    found = doctor.judge_toolchain(ADDED)
    assert (found.verdict, found.detail) == (DoctorVerdict.OK, "apache-tvm 0.28, ffi ? in /opt/tvm28/bin/python")
    found = doctor.judge_toolchain(ADDED | {"up": False, "versions": {}})
    assert (found.verdict, "/opt/tvm28/bin/python -m pip install" in found.fix) == (DoctorVerdict.WARN, True)


def test_a_finding_that_is_not_ok_has_what_mends_it():
    """What an error says may be nothing: `of_error` has something else then."""
    places = [
        (path.name, node)
        for pattern in ("cli/doctor*.py", "control/verbs/*.py")
        for path in (ROOT / "farm").glob(pattern)
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Diagnosis"
    ]
    assert len(places) > 30
    for name, call in places:
        verdict, fix = call.args[1], [ast.unparse(each) for each in call.args[3:]]
        if getattr(verdict, "id", "") != "OK":
            assert fix, (name, call.lineno)
            assert fix[0] != "''", (name, call.lineno)
            assert not fix[0].endswith(".hint"), (name, call.lineno)
    assert of_error("adb", DoctorVerdict.FAIL, UserError("no adb")).fix
    assert judge_folder("state folder", Path("/var/lib/farm"), 0).fix
    assert "(farm serve makes it)" in judge_folder("state folder", Path("/var/lib/farm"), 10**12, exists=False).detail


def test_usb_permission_is_judged_in_one_place_and_by_the_daemon_where_one_answers(monkeypatch):
    assert [path.name for path in (ROOT / "farm").rglob("*.py") if '"usb permission"' in path.read_text()] == [
        "doctor_findings.py"
    ]
    asked = []
    monkeypatch.setattr(doctor.doctor_host, "usb", lambda sysfs: asked.append(sysfs) or ())
    monkeypatch.setattr(doctor, "_daemon", lambda _: ())
    config = load(None)
    list(doctor.checks(config))
    assert asked == []
