"""What `farm doctor` says of a host, and what it looks at for it."""

from __future__ import annotations

import os
import re
import socket
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from farm.cli import doctor
from farm.cli import doctor_host as host
from farm.common.doctor_findings import DoctorVerdict
from farm.config import FarmConfig, load
from tests.support.pages import ROOT

OK, WARN, FAIL = DoctorVerdict.OK, DoctorVerdict.WARN, DoctorVerdict.FAIL


def config(tmp_path: Path, text: str = "") -> FarmConfig:
    file = tmp_path / "farm.toml"
    file.write_text(text)
    return load(file, environ={}, flags={"state_dir": str(tmp_path), "runtime_dir": str(tmp_path)})


def test_a_clock_that_nobody_keeps_right() -> None:
    assert host.judge_clock(0x2001).verdict is OK
    wrong = host.judge_clock(0x2001 | host.STA_UNSYNC)
    assert (wrong.verdict, "set-ntp" in wrong.fix) == (WARN, True)
    assert [finding.check for finding in host.clock()] == ["clock"]


@pytest.mark.parametrize(
    ("address", "verdict"), [("127.0.0.1", OK), ("::1", OK), ("0.0.0.0", WARN), ("10.1.2.3", WARN)]
)
def test_who_reaches_an_address(address: str, verdict: DoctorVerdict) -> None:
    found = doctor.judge_address(doctor.ListenAddress("tvm.host", address, 9190, "run code on every phone"))
    assert found.verdict is verdict
    assert found.fix.startswith('[tvm] host = "127.0.0.1"' if verdict is WARN else "")


def test_ports_for_builders_and_hosts_are_checked_with_what_they_ask_for(tmp_path: Path) -> None:
    doors = doctor.guarded_addresses(
        config(
            tmp_path,
            """
[builders]
listen = "tcp://10.0.0.1:9193"
[store]
url = "postgresql://farm@db/farm"
[lab]
host = "a"
head = "apart"
listen = "tcp://10.0.0.1:9196"
""",
        )
    )
    assert [(door.key, door.port, doctor.judge_address(door).verdict) for door in doors] == [
        ("builders.listen", 9193, OK), ("lab.listen", 9196, OK)
    ]  # fmt: skip


def test_the_installed_unit_says_how_the_service_is_configured(tmp_path: Path) -> None:
    assert host.service_settings(tmp_path / "none") == {}
    unit = tmp_path / "farm.service"
    unit.write_text((ROOT / "systemd/farm.service").read_text())
    (tmp_path / "farm.service.d").mkdir()
    (tmp_path / "farm.service.d/override.conf").write_text('[Service]\nEnvironment="FARM_WEB__READ=loopback"\n')
    told = load(None, environ=host.service_settings(unit))
    assert (told.state_dir, told.runtime_dir) == (Path("/var/lib/farm"), Path("/run/farm"))
    assert (told.adb_socket, told.adb.service) == ("localfilesystem:/run/farm-adb/adb.sock", True)
    assert (told.tvm.gate, told.web.read) == ("/run/farm-gate/gate.sock", "loopback")


def test_every_port_of_the_configuration_is_checked(tmp_path: Path) -> None:
    doors = doctor.addresses_of(
        config(tmp_path, '[web]\nhost = "10.0.0.1"\n[control]\nlisten = "tcp://127.0.0.1:9192"')
    )
    assert [(door.key, door.host, door.port) for door in doors] == [
        ("tvm.host", "127.0.0.1", 9190), ("web.host", "10.0.0.1", 9191), ("control.listen", "127.0.0.1", 9192),
    ]  # fmt: skip
    apart = doctor.ListenAddress(doctor.GATE, "10.0.0.1", 9190, doctor.RUN_CODE)
    behind_gate = config(tmp_path, '[tvm]\ngate = "/run/g.sock"\n[web]\nenabled = false')
    assert doctor.addresses_of(behind_gate, [apart]) == (apart,)
    assert doctor.addresses_of(config(tmp_path, "[web]\nenabled = false"), [apart]) == (apart,)  # the unit says more


@pytest.mark.parametrize(
    ("bound", "pid", "page", "verdicts", "fix"),
    [
        ("0.0.0.0", 7, "", [WARN], '[tvm] host = "127.0.0.1"'),
        ("0.0.0.0", 8, "", [WARN], "systemctl edit farm-gate.socket"),  # it stands in farm.service alone
        ("127.0.0.1", 7, "http://127.0.0.1:45845/", [OK, OK], ""),
        ("127.0.0.1", 7, "http://0.0.0.0:9191/", [OK, WARN], ""),
    ],
)
def test_ports_are_judged_by_what_they_are_bound_to(
    bound: str, pid: int, page: str, verdicts: list[DoctorVerdict], fix: str
) -> None:
    tracker = {"host": "127.0.0.1", "port": 9190, "bound": bound, "pid": pid}
    found = [doctor.judge_address(door) for door in doctor.addresses_in({"pid": 7, "tracker": tracker, "web": page})]
    assert [each.verdict for each in found] == verdicts
    assert (f"{bound} port 9190" in found[0].detail, found[0].fix.startswith(fix)) == (True, True)


def test_a_port_that_somebody_else_has(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = config(tmp_path, f"[tvm]\nport = {port}\n[web]\nenabled = false")
        found = list(doctor.listeners(told, tmp_path / "no-gate"))
        assert [(finding.check, finding.verdict) for finding in found] == [("exposure", OK), (f"port {port}", FAIL)]
        assert f"pid {os.getpid()}" in found[1].detail


@pytest.mark.parametrize("toml", ["", 'gate = "{gate}"\n'])
def test_a_gate_that_waits_for_its_daemon_may_have_the_port(tmp_path: Path, toml: str) -> None:
    gate = tmp_path / "gate.sock"
    command = [sys.executable, "-m", "farm", "gate", "--host", "127.0.0.1", "--port", "0", "--socket", str(gate)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            port = next(int(said[1]) for line in process.stdout if (said := re.search(r"port (\d+)", line)))
            told = config(tmp_path, f"[tvm]\nport = {port}\n{toml.format(gate=gate)}[web]\nenabled = false")
            (found,) = doctor.listeners(told, tmp_path / "no-gate")
            assert (found.verdict, found.detail) == (OK, f"farm gate 127.0.0.1 port {port}: this host only")
        finally:
            process.terminate()


def test_a_gate_that_systemd_holds_the_port_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from farm.adb import program

    with socket.create_server(("127.0.0.1", 0)) as taken, socket.socket(socket.AF_UNIX) as way:
        port = taken.getsockname()[1]
        told = config(tmp_path, f"[tvm]\nport = {port}\n[web]\nenabled = false")
        unseen = program.ServerProcess(None, "root", "")  # what whoever is not root sees of systemd
        monkeypatch.setattr(program, "port_holder", lambda _: unseen)
        gate = tmp_path / "gate.sock"
        assert [finding.verdict for finding in doctor.listeners(told, gate)] == [OK, FAIL]
        way.bind(str(gate))
        (found,) = doctor.listeners(told, gate)
        assert found.detail == f"farm gate 127.0.0.1 port {port}: this host only"


def test_a_process_that_listens_for_everybody_itself_or_by_a_child() -> None:
    assert list(doctor.of_process(os.getpid())) == []
    with socket.create_server(("0.0.0.0", 0)) as everybody:
        port = everybody.getsockname()[1]
        (found,) = doctor.of_process(os.getpid())
        assert (found.verdict, str(port) in found.detail) == (WARN, True)
        assert list(doctor.of_process(os.getpid(), [port])) == []
    listener = "import socket; s = socket.create_server(('0.0.0.0', 0)); print(s.getsockname()[1], flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", listener], stdin=-1, stdout=-1, text=True) as child:
        assert child.stdout is not None
        port = int(child.stdout.readline())
        assert [str(port) in found.detail for found in doctor.of_process(os.getpid())] == [True]
        child.communicate("\n")


def test_units_of_another_farm_are_told() -> None:
    wanted = {"farm.service": "new", "farm-adb.service": "new"}
    assert host.judge_units(wanted, {}).detail.startswith("not installed")
    assert host.judge_units(wanted, {f"etc/systemd/system/{name}": "new" for name in wanted}).verdict is OK
    found = host.judge_units(wanted, {"etc/systemd/system/farm.service": "new"})
    assert (found.verdict, found.detail.startswith("farm-adb.service:")) == (WARN, True)
    assert "install-service" in found.fix


@pytest.mark.parametrize(("server", "client", "verdict"), [(41, 41, OK), (41, 0, OK), (40, 41, FAIL)])
def test_an_adb_server_of_another_version(server: int, client: int, verdict: DoctorVerdict) -> None:
    assert host.judge_versions(server, client, "tcp:x").verdict is verdict


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_who_may_not_ask_the_adb_server_is_not_told_that_there_is_none() -> None:
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{folder}/adb.sock")
        os.seteuid(65534)
        try:
            (finding,) = host.adb_server(FarmConfig(), f"localfilesystem:{folder}/adb.sock", needed=True)
        finally:
            os.seteuid(0)
    assert (finding.verdict, "for its user and root" in finding.detail) == (OK, True)


def phone(tmp_path: Path, mode: int, interface: tuple[str, str, str] = ("ff", "42", "01")) -> tuple[Path, Path]:
    device = tmp_path / "bus/usb/devices/1-2"
    (device / "1-2:1.0").mkdir(parents=True)
    for name, text in {"busnum": "1", "devnum": "7", "serial": "R5CT"}.items():
        (device / name).write_text(f"{text}\n")
    for name, text in zip(("bInterfaceClass", "bInterfaceSubClass", "bInterfaceProtocol"), interface, strict=True):
        (device / "1-2:1.0" / name).write_text(f"{text}\n")
    node = tmp_path / "dev/001/007"
    node.parent.mkdir(parents=True)
    node.touch()
    node.chmod(mode)
    return tmp_path, tmp_path / "dev"


@pytest.mark.parametrize(
    ("mode", "interface", "verdicts"),
    [(0o644, ("ff", "42", "01"), [WARN]), (0o666, ("ff", "42", "01"), [OK]), (0o600, ("03", "01", "01"), [])],
    ids=["only root may open it", "everybody may", "a keyboard"],
)
def test_who_may_open_a_phone(
    tmp_path: Path, mode: int, interface: tuple[str, str, str], verdicts: list[DoctorVerdict]
) -> None:
    found = list(host.usb(*phone(tmp_path, mode, interface)))
    assert [each.verdict for each in found] == verdicts
    if mode == 0o644:
        assert found[0].detail == "only root may open the phones at 1-2"
        assert "udevadm" in found[0].fix
    assert list(host.usb(tmp_path / "no-sysfs")) == []


def test_a_damaged_database_names_the_way_back(tmp_path: Path) -> None:
    told, path = config(tmp_path), tmp_path / "farm.db"
    assert list(doctor.database(told)) == []  # there is none yet
    with sqlite3.connect(path) as connection:
        connection.executescript("CREATE TABLE a (b); CREATE INDEX c ON a (b);")
        connection.executemany("INSERT INTO a VALUES (?)", [(str(number) * 50,) for number in range(1000)])
    connection.close()
    assert [finding.verdict for finding in doctor.database(told)] == [OK]
    data = bytearray(path.read_bytes())
    data[5000:9000] = b"\xff" * 4000
    path.write_bytes(data)
    (found,) = doctor.database(told)
    assert (found.verdict, "farm store restore" in found.fix) == (FAIL, True)


def test_bundles(tmp_path: Path) -> None:
    assert list(doctor.bundles(config(tmp_path))) == []
    assert doctor.judge_bundles(["b", "", "a"], []).detail.startswith("a, b:")
    assert doctor.judge_bundles([], []).verdict is WARN
    assert doctor.judge_bundles(["a"], ["0123: libtvm.so is gone"]).verdict is FAIL
