"""What `farm doctor` says of a daemon: one on this host, one elsewhere, one that cuts a port's power."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from farm.cli import doctor
from farm.common.doctor_findings import Diagnosis, DoctorVerdict, judge_folder, of_error
from farm.common.errors import DaemonUnreachableError, UserError
from farm.config import load
from farm.control.address import ClientKey, Remote
from tests.support.pages import ROOT

NAME = "pixel"
KEY = ClientKey("ann", "", "", "")
STATUS = {"seq": 4, "pid": 1, "version": "0.1.0", "problems": ["the clock jumped"]}


ADDED = {"name": "tvm28", "python": "/opt/tvm28/bin/python", "up": True, "versions": {"apache-tvm": "0.28"}}


def ended(subject: str, action: str = "power-cycle", outcome: str = "repaired") -> dict[str, Any]:
    return {"kind": "recovery.ended", "subject": subject, "data": {"action": action, "outcome": outcome, "detail": "d"}}


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Cuts the power of `pixel`, typed as its serial, with the daemon's events made up."""

    def run(*events: dict[str, Any] | Exception, refused: Exception | None = None) -> Diagnosis:
        def call(kind: str, **_: Any) -> dict[str, Any]:
            if kind == "status":
                return STATUS
            if refused is not None:
                raise refused
            return {"name": NAME, "beside": []}

        class Client:
            def stream(self, *_: Any, **__: Any) -> Iterator[dict[str, Any]]:
                for event in events:
                    if isinstance(event, Exception):
                        raise event
                    yield event

        monkeypatch.setattr(doctor, "call", call)
        monkeypatch.setattr(doctor, "connect", lambda: contextlib.nullcontext(Client()))
        return doctor._cut("SERIAL")

    return run


def test_the_phone_may_be_named_by_its_serial(cut: Any) -> None:
    found = cut(ended("other"), ended(NAME, action="reboot", outcome="failed"), ended(NAME))
    assert (found.verdict, NAME in found.detail) == (DoctorVerdict.OK, True)
    assert cut(ended(NAME, outcome="failed")).verdict is DoctorVerdict.FAIL


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([TimeoutError()], "nothing is known"),
        ([DaemonUnreachableError("the daemon has gone")], "the daemon has gone"),
        ([], "ended"),
    ],
)
def test_what_keeps_it_from_being_proved_is_a_finding(cut: Any, events: list[Any], said: str) -> None:
    found = cut(*events)
    assert (found.check, found.verdict, said in found.detail) == ("power cut", DoctorVerdict.FAIL, True)


def test_a_refusal_is_a_finding_with_its_way_out(cut: Any) -> None:
    found = cut(refused=UserError("bob holds pixel", hint="farm lease kick pixel"))
    assert (found.verdict, found.detail, found.fix) == (
        DoctorVerdict.FAIL, "SERIAL: bob holds pixel", "farm lease kick pixel",
    )  # fmt: skip


def test_of_a_daemon_elsewhere_only_what_it_says_is_told_and_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: dict[str, dict[str, Any]] = {
        "status": STATUS,
        "toolchain.list": {"toolchains": [ADDED]},
        "bundle.list": {"bundles": []},
        "doctor": {"findings": [{"check": "usb", "verdict": "ok", "detail": "switches", "fix": ""}]},
    }
    monkeypatch.setattr("farm.control.address.find", lambda: Remote("lab", 9192, KEY))
    monkeypatch.setattr(doctor, "call", lambda kind, **_: answers[kind])
    monkeypatch.setattr(doctor, "listeners", lambda *_: pytest.fail("this is another host"))
    (tmp_path / "farm.toml").touch()
    found = list(doctor._daemon(load(tmp_path / "farm.toml", environ={})))
    assert [each.check for each in found] == [
        "lab: host", "lab: toolchain tvm28", "lab: bundles", "lab: daemon", "lab: daemon", "lab: usb",
    ]  # fmt: skip
    assert "tcp://lab:9192" in found[0].detail


def test_toolchains_are_those_of_the_daemon_added_ones_too() -> None:
    found = doctor.judge_toolchain(ADDED)
    assert (found.verdict, found.detail) == (DoctorVerdict.OK, "apache-tvm 0.28, ffi ? in /opt/tvm28/bin/python")
    found = doctor.judge_toolchain(ADDED | {"up": False, "versions": {}})
    assert (found.verdict, "/opt/tvm28/bin/python -m pip install" in found.fix) == (DoctorVerdict.WARN, True)


def test_a_finding_that_is_not_ok_has_what_mends_it() -> None:
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


def test_usb_permission_is_judged_in_one_place_and_by_the_daemon_where_one_answers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert [path.name for path in (ROOT / "farm").rglob("*.py") if '"usb permission"' in path.read_text()] == [
        "doctor_findings.py"
    ]
    asked: list[Path] = []
    monkeypatch.setattr(doctor.doctor_host, "usb", lambda sysfs: asked.append(sysfs) or ())
    monkeypatch.setattr(doctor, "_daemon", lambda _: ())
    config = load(None)
    list(doctor.checks(config))
    assert asked == []
