"""Findings about a lab: hosts that are missed, other releases, phones at two hosts, too few connections."""

from dataclasses import replace

import pytest

from farm.common.doctor_findings import FAIL, OK, WARN
from farm.head.host_rules import HostState, state_of
from farm.leasing.lab_rules import host_with, lab_findings, lab_problems, next_step
from farm.leasing.lab_view import HostView, LabPicture, RemotePhone
from farm.model.device import DeviceView, Life
from farm.model.identity import DeviceIdentity

ONE = HostView("lab1", None, 1, address="192.0.2.1:9194", version="1.0", state=HostState.OK, silent_s=0.5, phones=1)
TWO = replace(ONE, name="lab2")


def phone(name, serial, life=Life.READY):
    return DeviceView(name, f"adb-{name}", life, identity=DeviceIdentity(hardware_serial=serial))


def found(lab, phones=(), most=100):
    head, *others = [(each.check, each.verdict, each.detail) for each in lab_findings(lab, "lab1", phones, most)]
    assert head == ("lab head", OK, f"one decides, in term {lab.term}")
    return others


def test_a_whole_lab_is_fine():
    assert found(LabPicture(hosts=(ONE, TWO))) == [("lab hosts", OK, "2 hosts, none is away")]


def test_a_lab_without_a_head_says_so():
    alone = LabPicture(hosts=(ONE, TWO), has_head=False)
    head, _ = lab_findings(alone, "lab1", (), 100)
    assert (head.check, head.verdict) == ("lab head", FAIL)
    assert head.detail.startswith("no head decides")
    assert "systemctl start farm-head" in head.fix
    assert lab_problems(alone) == [f"{head.detail}: {head.fix}"]
    assert lab_problems(LabPicture(hosts=(ONE, TWO))) == []


def test_a_picture_of_before_is_told_once_and_nothing_else_of_it():
    old = LabPicture(hosts=(ONE, replace(TWO, state=HostState.LOST)), has_head=False, old_s=95.0)
    (finding,) = lab_findings(old, "lab1", (), 1)
    assert (finding.check, finding.verdict) == ("lab hosts", WARN)
    assert finding.detail == "the lab is shown as it was 1m 35s ago, when its database last answered this host"
    assert lab_problems(old) == [finding.detail]


def test_a_missed_host_and_another_release_are_named():
    late = replace(TWO, state=HostState.LOST, silent_s=30.0, version="0.9", protocol=2)
    lost, release = found(LabPicture(hosts=(ONE, late)))
    assert lost == ("lab hosts", WARN, "host lab2 is lost: its latest beat is 30s old")
    assert release == ("lab releases", WARN, "host lab2 has farm 0.9 (protocol 2), this one 1.0 (1)")


def test_of_two_hosts_one_must_listen():
    deaf = replace(TWO, address="")
    assert len(found(LabPicture(hosts=(ONE, deaf)))) == 1
    said = "hosts lab2, lab3 do not listen for others: they do not reach each other's phones and files"
    assert found(LabPicture(hosts=(ONE, deaf, replace(deaf, name="lab3"))))[1:] == [("lab hosts", WARN, said)]


def test_a_host_that_cannot_be_reached_must_be_repaired():
    why = "host lab2 cannot be reached: it has not answered within 5 s"
    lab = LabPicture(hosts=(ONE, replace(TWO, unreached=why), replace(TWO, name="lab3", unreached="")))
    assert found(lab)[1:] == [("lab links", FAIL, why)]
    assert [problem.startswith(why) for problem in lab_problems(lab)] == [True]
    assert "[lab] listen" in next_step(lab.hosts[1])


def test_a_phone_at_two_hosts_is_named_with_both():
    lab = LabPicture(hosts=(ONE, TWO), phones=(RemotePhone("lab2", phone("b", "R58M123"), ""),))
    assert found(lab, [phone("a", "R58M123")])[1] == (
        "lab phones", WARN, "phone R58M123 is at lab1 (as a) and lab2 (as b)",
    )  # fmt: skip
    assert len(found(lab, [phone("a", "R58M123", Life.GONE)])) == 1  # it has moved
    assert len(found(lab, [phone("a", "0123456789ABCDEF")])) == 1


def test_the_server_admits_all_hosts_and_heads():
    hosts = tuple(replace(ONE, name=f"lab{number}") for number in range(1, 16))
    (_, (check, verdict, detail)) = found(LabPicture(hosts=hosts))
    assert (check, verdict, detail) == ("lab connections", WARN, "15 hosts and 2 heads take 106 connections of 100")
    assert len(found(LabPicture(hosts=hosts), most=200)) == 1


def test_the_state_of_a_host_is_that_of_its_beat():
    def state(age_s, drained=False, removed=False):
        return state_of(age_s, drained=drained, removed=removed)

    assert [state(each) for each in (None, 0.5, 5.0, 9.0)] == ["stopped", "ok", "silent", "lost"]
    assert state(0.5, drained=True) == "drained"
    assert state(9.0, drained=True) == "lost"
    assert state(0.5, removed=True) == "removed"


PHONE = DeviceIdentity(hardware_serial="R58M123", vendor="acme", model="one", abi="arm64-v8a")
THERE = DeviceView("b", "192.0.2.7:5555", Life.READY, adopted=True, identity=PHONE)


@pytest.mark.parametrize(
    ("phone", "own", "starting", "has_it"),
    [
        (THERE, "lab1", False, True),
        (THERE, "lab1", True, True),  # it is ready there
        (replace(THERE, life=Life.GONE), "lab1", False, False),
        (replace(THERE, life=Life.IDENTIFYING), "lab1", False, False),
        (replace(THERE, adopted=False), "lab1", False, False),
        (replace(THERE, identity=replace(PHONE, model="two")), "lab1", False, False),
        (replace(THERE, identity=replace(PHONE, hardware_serial="R58M124")), "lab1", False, False),
        (replace(THERE, identity=None), "lab1", False, False),
        (replace(THERE, life=Life.RECOVERING), "lab1", False, True),
        # Both have begun at the same moment: the first by name continues.
        (replace(THERE, life=Life.STARTING), "lab1", True, False),
        (replace(THERE, life=Life.STARTING), "lab3", True, True),
    ],
)
def test_of_two_hosts_with_one_phone_one_uses_it(phone, own, starting, has_it):
    lab = LabPicture(phones=(RemotePhone("lab2", phone, ""),))
    why = host_with(lab, own, PHONE, starting=starting)
    assert why == ("host lab2 has the same phone, as b" if has_it else "")
    waiting = LabPicture(phones=(RemotePhone("lab2", phone, "", unused=True),))
    assert host_with(waiting, own, PHONE, starting=starting) == ""


def test_a_makers_default_number_is_no_phones_own():
    board = replace(PHONE, hardware_serial="0123456789ABCDEF")
    lab = LabPicture(phones=(RemotePhone("lab2", replace(THERE, identity=board), ""),))
    assert host_with(lab, "lab1", board, starting=False) == ""
