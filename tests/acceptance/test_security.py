"""What a stranger meets: closed ports, refusals that are written down, and no secret anywhere."""

import os
import re
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest

from farm import Client
from farm.cli.auth import key_file
from farm.common.errors import ExitCode, NotAllowedError
from farm.control.address import find
from farm.control.callers import Role
from farm.control.client import ControlClient
from tests.support.long_bench import bench_under_way
from tests.support.other_users import ELSEWHERE, key_of, signed_in
from tests.support.systemd import Host
from tests.support.tvm import ROOT, environment
from tests.support.verbs import every_verb
from tests.support.waiting import HANG_S
from tests.support.whole_farm import answer, running_farm, until

LOOPBACK = re.compile(r"(127\.\d+\.\d+\.\d+|::1|::ffff:127\.\d+\.\d+\.\d+)")
# What the daemon and its children make with the module `secrets` and nobody but its owner may see.
MAKERS = {
    "farm.leasing.sessions": "match keys",
    "farm.control.server": "tokens of workers",
    "farm.devices.server.rpc_server": "the secrets of phones' servers",
    "farm.control.callers": "tokens for the page",
    "farm.web.page": "sessions of the page, and their CSRF words",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Where the daemon's secrets are written down, and nobody else's."""
    return tmp_path_factory.mktemp("made") / "secrets"


@pytest.fixture(scope="module")
def farm(gate, made):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RECORDED_SECRETS", str(made))
        patch.setenv("PYTHONPATH", str(ROOT / "tests/support/recorded"), prepend=os.pathsep)
        with running_farm("huawei-mate-20", config=ELSEWHERE, gate=gate.socket) as farm:
            yield farm


def listeners(processes):
    """Addresses that these processes listen at, by /proc/net: TCP that listens, and every UDP socket."""
    inodes = set()
    for process in processes:
        with suppress(OSError):
            for link in Path(f"/proc/{process.pid}/fd").iterdir():
                with suppress(OSError):
                    if found := re.fullmatch(r"socket:\[(\d+)\]", str(link.readlink())):
                        inodes.add(found[1])
    found = set()
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[9] in inodes and (table.startswith("udp") or words[3] == "0A"):
                found.add((table, *address_of(words[1])))
    return found


def address_of(words):
    """`0100007F:23E6` as /proc/net/tcp has it: words of the host's byte order."""
    host, _, port = words.partition(":")
    raw = b"".join(bytes.fromhex(host[at : at + 8])[::-1] for at in range(0, len(host), 8))
    return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw), int(port, 16)


def family(pid):
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def test_the_scan_sees_what_listens():
    with socket.create_server(("0.0.0.0", 0)) as one, socket.create_server(("::1", 0), family=socket.AF_INET6) as six:
        found = listeners([psutil.Process()])
        assert {("tcp", "0.0.0.0", one.getsockname()[1]), ("tcp6", "::1", six.getsockname()[1])} <= found


def test_a_default_install_listens_on_loopback_only(tmp_path):
    ports = {"FARM_TVM__PORT": "0", "FARM_WEB__PORT": "0"}  # those of a farm of this host are left alone
    mine = {name: value for name, value in environment().items() if not name.startswith("FARM_")} | ports
    folders = ["--state-dir", str(tmp_path / "state"), "--runtime-dir", str(tmp_path / "run")]
    with (tmp_path / "log").open("wb") as log:
        daemon = subprocess.Popen(
            [sys.executable, "-m", "farm", "serve", "--die-with-parent", *folders], env=mine, stdout=log, stderr=log
        )
    try:
        with ControlClient(tmp_path / "run" / "control.sock") as client:
            client.wait_until_up(60, alive=lambda: daemon.poll() is None)
            status = client.call("status")
        found = listeners(family(daemon.pid))
        assert status["tracker"]["port"] in {port for _, _, port in found}
        assert [each for each in found if not LOOPBACK.fullmatch(each[1])] == []
    finally:
        daemon.terminate()
        daemon.wait(HANG_S)


def test_a_farm_at_work_listens_on_loopback_only(farm, gate):
    found = listeners([*family(farm.daemon.process.pid), *family(gate.process.pid)])
    assert len(found) >= 3  # TVM, web, control
    assert [each for each in found if not LOOPBACK.fullmatch(each[1])] == []


def test_the_installed_units_listen_on_loopback_only():
    with tempfile.TemporaryDirectory(prefix="farm-u-") as folder:
        host = Host(Path(folder))
        for where in host.unit("farm-gate.socket").values("Socket", "ListenStream"):
            assert LOOPBACK.fullmatch(where.rpartition(":")[0].strip("[]")), where
        # No port and no phone of this host is touched; what the units say is not replaced by it.
        host.environ |= {"FARM_CONFIG": str(host.config), "FARM_WEB__PORT": "0", "FARM_ADB__USB": "false"}
        with (
            host.sockets("farm-gate.socket") as passed,
            host.service("farm-adb.service") as adb,
            host.service("farm-gate.service", passed=passed) as gate,
            host.service("farm.service") as daemon,
        ):
            with ControlClient(host.folder / "run/farm/control.sock") as client:
                status = client.call("status")
            until((host.folder / "run/farm-adb/adb.sock").is_socket)
            found = {process: listeners(family(process.pid)) for process in (adb, gate, daemon)}
            sockets = {
                path.name: path.stat().st_mode & 0o777 for path in host.folder.rglob("*.sock") if path.is_socket()
            }
        assert found[adb] == set()
        assert {port for _, _, port in found[gate]} == {status["tracker"]["port"]}
        assert {port for _, _, port in found[daemon]} >= {httpx.URL(status["web"]).port}
        assert [each for those in found.values() for each in those if not LOOPBACK.fullmatch(each[1])] == []
        assert sockets.keys() >= {"adb.sock", "gate.sock", "control.sock"}
        assert [name for name, mode in sockets.items() if mode & 0o007] == []
        assert sockets["adb.sock"] & 0o070 == 0  # the group's members are users: they have leases


def remote(key, *arguments):
    """A `farm` command as somebody elsewhere runs it: no socket, a key."""
    mine = {name: value for name, value in environment().items() if not name.startswith("FARM_")}
    command = [sys.executable, "-m", "farm", "--key", str(key), *arguments]
    return subprocess.run(command, env=mine, capture_output=True, text=True, timeout=240, check=False)


def test_commands_work_from_elsewhere_as_they_do_here(farm, tmp_path):
    key = tmp_path / "ann.key"
    made = farm.farm("auth", "new", "ann", "--role", "user", "-o", str(key))
    assert made.returncode == 0, made
    assert key.stat().st_mode & 0o777 == 0o600
    phone = farm.status()["devices"][0]["name"]
    assert phone in remote(key, "status").stdout
    ran = remote(key, "shell", "--on", "android", "--", "echo hello from $(id -un)")
    assert (ran.returncode, ran.stdout) == (0, "hello from shell\n"), ran
    refused = remote(key, "device", "drain", phone)
    assert refused.returncode == ExitCode.NOT_ALLOWED
    assert "needs the role operator; ann is user" in refused.stderr
    assert farm.farm("auth", "revoke", "ann").returncode == 0
    gone = remote(key, "status")
    assert gone.returncode == ExitCode.NOT_ALLOWED
    assert "does not take this key" in gone.stderr
    told = farm.farm("auth", "audit", "--user", "ann").stdout
    assert re.search(r"ann +user +key ann from 127\.0\.0\.1 +job\.submit +shell-\w+.* ok", told)
    assert re.search(rf"device\.service +{phone}.* not_allowed", told)


def test_no_secret_is_written_anywhere(farm, gate, made, tmp_path):
    account = farm.client.call("auth.new", name="carol", role="operator")
    token = farm.client.call("auth.new", name="carol", role="operator", web=True)["token"]
    path = tmp_path / "carol.key"
    path.write_text(key_file(account))
    path.chmod(0o600)
    assert remote(path, "device", "set", farm.status()["devices"][0]["name"], "--label", "rack=3").returncode == 0
    assert remote(path, "auth", "audit").returncode == 0
    session = signed_in(farm.status()["web"], token)
    held = answer(farm.farm("lease", "acquire", "--on", "android", "--for", "1m", "--json"))
    farm.client.call("lease.kick", device=farm.status()["devices"][0]["name"])
    farm.wait_ready(1)
    with bench_under_way(farm) as worker:
        while_it_works = [Path(worker.cwd()), farm.folder]
        secrets = {account["secret_key"]: "an account's key"} | made_by_daemon(made)
        assert {token.removeprefix("farm_"), *session, held["tvm_key"].rpartition(":")[2]} <= secrets.keys()
        assert set(secrets.values()) >= set(MAKERS.values())
        nowhere(secrets, while_it_works)
    secrets |= made_by_daemon(made)
    secret_of_daemon = (farm.folder / "state" / "keys" / "server.key").read_text().strip()
    checked = nowhere(secrets, [farm.folder, farm.daemon.log, gate.log])
    for file in farm.folder.rglob("*"):
        if file.is_file():
            assert file.name == "server.key" or secret_of_daemon.encode() not in file.read_bytes(), file
    assert checked > 10
    told = str(farm.client.call("audit.list", limit=1000)["rows"]) + str(farm.client.call("status"))
    assert [secret for secret in (*secrets, secret_of_daemon) if secret in told] == []


def made_by_daemon(made):
    """Its secrets so far -> what they are."""
    lines = (line.split(" ", 1) for line in made.read_text().splitlines())
    return {secret: MAKERS[maker] for maker, secret in lines if maker in MAKERS}


def nowhere(secrets, places):
    """No file of these holds one; how many were looked at."""
    found = re.compile(b"|".join(re.escape(secret.encode()) for secret in secrets))
    checked = 0
    for file in {each for place in places for each in (place.rglob("*") if place.is_dir() else [place])}:
        with suppress(FileNotFoundError):  # gone meanwhile
            if file.is_file() and not file.is_symlink() and file.stat().st_size < 64 << 20:
                checked += 1
                seen = found.search(file.read_bytes())
                assert not seen, (file, secrets[seen[0].decode()])
    return checked


def test_a_leases_key_is_for_its_holder_and_operators(farm, tmp_path):
    roles = {"ann": "user", "bob": "user", "eva": "viewer"}
    keys = {name: key_of(farm, name, role, tmp_path) for name, role in roles.items()}
    held = answer(remote(keys["ann"], "lease", "acquire", "--on", "android", "--for", "1m", "--json"))
    lease, job, device, key = (held[name] for name in ("lease", "job", "device", "tvm_key"))
    assert farm.client.call("lease.show", lease=lease)["tvm_key"] == key  # an operator
    looks = {
        "status": {}, "lease.list": {}, "job.list": {}, "job.show": {"job": job}, "device.show": {"device": device},
        "explain": {"what": "device", "name": device}, "reservation.list": {}, "forward.list": {},
    }  # fmt: skip
    told = [json for name in ("bob", "eva") for json in looked(keys[name], lease, looks)]
    with httpx.Client(base_url=farm.status()["web"], follow_redirects=True) as nobody:
        for page in ("", "leases", "queue", "jobs", f"jobs/{job}", f"devices/{device}", "metrics"):
            got = nobody.get(f"/{page}")
            assert got.status_code == 200, page
            told.append(got.text)
    assert sum(device in each for each in told) > len(told) // 2
    assert [each for each in told if key.rpartition(":")[2] in each] == []
    assert remote(keys["ann"], "lease", "release", lease).returncode == 0
    farm.wait_ready(1)


def looked(key, lease, looks):
    """What somebody is told who may not have the lease's key."""
    with ControlClient(find(key=key, environ={})) as client, Client(key=key) as same:
        with pytest.raises(NotAllowedError):
            client.call("lease.show", lease=lease)
        told = [str(client.call(verb, **fields)) for verb, fields in looks.items()]
        return [*told, str(list(same.events(since=0, follow=False)))]


def test_a_viewer_from_elsewhere_is_refused_every_verb_that_changes_something(farm, tmp_path):
    where = find(key=key_of(farm, "eve", "viewer", tmp_path), environ={})
    wanted = []
    with ControlClient(where) as client:
        for kind, role in sorted(every_verb(tmp_path).items()):
            if role.role > Role.VIEWER:
                with pytest.raises(NotAllowedError, match="eve is viewer"):
                    client.call(kind)
                wanted.append(kind)
    rows = farm.client.call("audit.list", user="eve", limit=1000)["rows"]
    assert sorted(row["kind"] for row in rows if row["outcome"] == "not_allowed") == wanted
    assert {row["origin"] for row in rows} == {"key eve from 127.0.0.1"}


def test_a_leased_adb_is_in_the_audit_log(farm):
    held = farm.farm("lease", "acquire", "--on", "android", "--for", "1m", "--env")
    assert held.returncode == 0, held
    exported = dict(re.findall(r"export (\w+)=(\S+)", held.stdout))
    mine = {**os.environ, **exported}
    for command in (["shell", "echo", "s3cret"], ["reboot"], ["kill-server"]):
        subprocess.run(
            [str(farm.adb_path), *command],
            env=mine,
            capture_output=True,
            timeout=60,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    phone = farm.status()["devices"][0]["name"]
    farm.client.call("lease.kick", device=phone)
    rows = farm.client.call("audit.list", verb="adb.")["rows"]
    told = {(row["kind"], row["subject"], row["outcome"]) for row in rows}
    assert ("adb.shell", phone, "ok") in told
    assert ("adb.kill", phone, "not_allowed") in told
    assert "s3cret" not in str(rows)
    farm.wait_ready(1)
