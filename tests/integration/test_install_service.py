"""`farm install-service` into a root folder of its own, looked at by systemd's own tools."""

import asyncio
import json
import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from farm import __version__
from farm.cli import install_service
from farm.cli.install_service import CONFIG, SYSUSERS, UNIT_FOLDER, UNITS, FileStep, Running, hidden, used_folders
from farm.common.errors import NotAllowedError
from farm.tvm_server.gate.messages import VERSION
from tests.support.forked_commands import run_farm
from tests.support.gate_lab import Lab, echo
from tests.support.needs import needs

MAX_EXPOSED = 20  # tenths: `systemd-analyze security` calls 2.0 "OK", a service of root without a sandbox is at 9.6
needs_systemd = needs("systemd-analyze")
pytestmark = pytest.mark.skipif(
    bool(hidden(used_folders())), reason="this interpreter is in /tmp: no service is installed from there"
)


def farm(*arguments):
    return run_farm("install-service", *arguments, environ=os.environ)


def tool(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def everything(root):
    return {str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()}


@pytest.fixture
def root(tmp_path):
    done = farm("--prefix", str(tmp_path / "root"))
    assert done.returncode == 0, done
    assert "systemctl enable --now" in done.stdout
    return tmp_path / "root"


def test_again_changes_nothing_and_brings_back_what_was_changed(root):
    before = everything(root)
    assert {f"{UNIT_FOLDER}/{unit}" for unit in UNITS} < before.keys()
    done = farm("--prefix", str(root), "--json")
    assert {step["doing"] for step in json.loads(done.stdout)["steps"]} == {"unchanged"}
    (root / UNIT_FOLDER / "farm.service").write_text("[Unit]\n")
    (root / "etc/farm/farm.toml").write_text("[quota]\ndevices = 1\n")
    done = farm("--prefix", str(root), "--json")
    doing = {Path(step["path"]).name: step["doing"] for step in json.loads(done.stdout)["steps"]}
    assert (doing["farm.service"], doing["farm.toml"]) == ("replace", "keep")
    assert everything(root) == before | {"etc/farm/farm.toml": "[quota]\ndevices = 1\n"}


def test_uninstall_leaves_nothing_but_what_people_wrote(root):
    assert farm("--prefix", str(root), "--uninstall").returncode == 0
    assert list(root.iterdir()) == []
    farm("--prefix", str(root))
    mine = root / "etc/farm/farm.toml"
    mine.write_text("[quota]\ndevices = 1\n")
    done = farm("--prefix", str(root), "--uninstall")
    assert f"keep      {mine} (it was changed: remove it yourself)" in done.stdout
    assert everything(root) == {"etc/farm/farm.toml": "[quota]\ndevices = 1\n"}


@pytest.mark.parametrize("only_say", ["--dry-run", "--print"])
def test_saying_what_would_be_done_does_nothing(only_say, tmp_path):
    done = farm(only_say, "--prefix", str(tmp_path / "root"))
    assert (done.returncode, "farm-adb.service" in done.stdout) == (0, True), done
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize("below", ["", "root"])
def test_a_prefix_that_is_a_file_is_refused_before_anything_is_said(below, tmp_path):
    (tmp_path / "file").write_text("mine")
    done = farm("--prefix", str(tmp_path / "file" / below))
    assert (done.returncode, done.stdout) == (2, "")
    assert f"error: {tmp_path}/file is no folder" in done.stderr
    assert (tmp_path / "file").read_text() == "mine"


def test_without_root_it_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(install_service, "SYSTEM", tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NotAllowedError) as refused:
        install_service.install_service(prefix=tmp_path)
    assert "sudo" in refused.value.hint
    capsys.readouterr()
    install_service.install_service(prefix=tmp_path, dry_run=True)
    assert "takes root: sudo" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_links_below_a_prefix_lead_nowhere(tmp_path):
    """The prefix may belong to somebody whom root does not trust."""
    outside, prefix = tmp_path / "outside", tmp_path / "prefix"
    outside.mkdir()
    (prefix / UNIT_FOLDER).mkdir(parents=True)
    victim = outside / "victim"
    victim.write_text("secret")
    (prefix / UNIT_FOLDER / ".farm.service.part").symlink_to(victim)
    (prefix / UNIT_FOLDER / "farm.service").symlink_to(victim)
    assert farm("--prefix", str(prefix)).returncode == 0
    assert victim.read_text() == "secret"
    assert not (prefix / UNIT_FOLDER / "farm.service").is_symlink()
    assert farm("--prefix", str(prefix), "--uninstall").returncode == 0
    shutil.rmtree(prefix / "etc")
    (prefix / "etc").symlink_to(outside)
    done = farm("--prefix", str(prefix))
    assert (done.returncode, f"{prefix}/etc is a link" in done.stderr) == (2, True)
    assert list(outside.iterdir()) == [victim]


@pytest.mark.parametrize("runs", [True, False])
def test_what_systemd_is_told_is_said_before_and_only_where_it_runs(runs, tmp_path, monkeypatch, capsys):
    done = []
    monkeypatch.setattr(install_service, "SYSTEM", tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(install_service, "systemd_runs", lambda: runs)

    succeeded = subprocess.CompletedProcess((), 0, stdout="")
    monkeypatch.setattr(subprocess, "run", lambda command, **_: done.append(command[:2]) or succeeded)
    install_service.install_service(prefix=tmp_path)
    said = capsys.readouterr().out
    assert f"{'run' if runs else 'not run':9} systemctl daemon-reload" in said
    assert ("systemd does not run on this host" in said) is not runs
    assert done == [("systemctl", "is-active"), ("systemd-sysusers",), ("systemctl", "daemon-reload")][: 3 * runs]


SERVICE, ADB, GATE, SOCKET = "farm.service", "farm-adb.service", "farm-gate.service", "farm-gate.socket"


@pytest.mark.parametrize(
    ("running", "replaced", "commands"),
    [
        (Running(), UNITS, []),
        (Running(frozenset(UNITS), __version__), (), []),
        (Running(frozenset({SERVICE, ADB, GATE}), "0.0.9"), (), ["restart farm"]),
        (Running(frozenset({SERVICE, GATE}), "", gate_fits=False), (), ["restart farm-gate", "restart farm"]),
        (Running(frozenset({ADB, GATE, SOCKET}), __version__), (ADB, GATE), ["restart farm-adb", "restart farm-gate"]),
        (Running(frozenset({GATE, SOCKET})), (SOCKET, GATE), ["stop farm-gate && systemctl restart farm-gate.socket"]),
    ],
)
def test_what_is_left_to_restart_is_said_with_what_it_ends(running, replaced, commands):
    steps = [FileStep("replace" if unit in replaced else "unchanged", f"{UNIT_FOLDER}/{unit}") for unit in UNITS]
    later = tuple(install_service.restarts(steps, running))
    assert [each.command for each in later] == [f"systemctl {each}" for each in commands]
    assert all(each.ends and each.why in str(each) for each in later)


async def test_a_gate_is_asked_for_its_version_and_left_as_it_was(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as older:
        older.bind(str(tmp_path / "gate.sock"))
        older.listen()
        asked = asyncio.create_task(asyncio.to_thread(install_service.gate_fits, str(tmp_path / "gate.sock")))
        answering, _ = await asyncio.to_thread(older.accept)
        with answering:
            answering.send(json.dumps({"kind": "rejected", "v": VERSION - 1}).encode())
            assert not await asked
    async with Lab() as lab:
        daemon = await lab.daemon()
        link = await lab.session()
        assert await asyncio.to_thread(install_service.gate_fits, str(lab.path))
        assert await asyncio.to_thread(install_service.gate_fits, "/absent")
        assert await echo(link)
        await daemon.stop()


def test_units_that_are_gone_are_not_stopped():
    """`systemctl disable` refuses as a whole when it does not know one of them."""
    paths = [f"{UNIT_FOLDER}/{unit}" for unit in UNITS]
    there = [FileStep("remove", path) for path in (*paths[1:], SYSUSERS)]
    before, after = install_service.commands_for([*there, FileStep("keep", CONFIG)], uninstall=True)
    assert before == (("systemctl", "disable", "--now", *UNITS[1:]),)
    assert after == (("systemctl", "daemon-reload"),)
    assert install_service.commands_for([FileStep("remove", SYSUSERS)], uninstall=True)[0] == ()
    assert install_service.commands_for([FileStep("keep", CONFIG)], uninstall=True) == ((), ())


@needs_systemd
def test_systemd_finds_no_mistake_in_the_units(root):
    units = [str(root / UNIT_FOLDER / unit) for unit in UNITS]
    done = tool("systemd-analyze", "verify", "--man=no", *units)
    assert (done.returncode, done.stderr) == (0, ""), done


@needs_systemd
@pytest.mark.parametrize("unit", [unit for unit in UNITS if unit.endswith(".service")])
def test_systemd_calls_each_service_well_closed(unit, root):
    command = ["systemd-analyze", "security", "--offline=true", f"--threshold={MAX_EXPOSED}"]
    path = str(root / UNIT_FOLDER / unit)
    done = tool(*command, path)
    assert done.returncode == 0, done.stdout.strip().splitlines()[-1]
    # The tool can say no: the same service without its sandbox is above.
    bare = root / unit
    bare.write_text("[Service]\nExecStart=/bin/true\n")
    assert tool(*command, str(bare)).returncode != 0


@needs("systemd-sysusers")
def test_systemd_makes_the_users(root):
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\n")
    done = tool("systemd-sysusers", f"--root={root}")
    assert done.returncode == 0, done
    names = [line.partition(":")[0] for line in (root / "etc/passwd").read_text().splitlines()]
    assert names == ["root", "farm", "farm-job"]
    groups = {line.split(":")[0]: line.split(":")[3] for line in (root / "etc/group").read_text().splitlines()}
    assert groups["plugdev"] == groups["farm-job"] == "farm"
