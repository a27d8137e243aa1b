"""What a stranger meets: closed ports, refusals that are written down, and a daemon that garbage does not move."""

import asyncio
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import urllib.request
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest
import zmq
import zmq.asyncio

from farm import Client
from farm.cli.auth import key_file
from farm.control.address import find, read_key
from farm.control.client import ControlClient
from farm.core.errors import ExitCode, NotAllowedError
from tests.fuzz.mutate import mutated
from tests.fuzz.targets import TARGETS, frames
from tests.support.gate_process import running_gate
from tests.support.long_bench import bench_under_way
from tests.support.raw import RawTracker
from tests.support.systemd import Host
from tests.support.tvm import ROOT, environment
from tests.support.verbs import every_verb
from tests.support.whole_farm import answer, running_farm, until

ELSEWHERE = '[control]\nlisten = "tcp://127.0.0.1:0"\n'
LOOPBACK = re.compile(r"(127\.\d+\.\d+\.\d+|::1|::ffff:127\.\d+\.\d+\.\d+)")
SEED = 20261122
MESSAGES = {
    "tvm": 20_000,
    "gate": 10_000,
    "control": 20_000,
    "worker": 10_000,
    "curve": 20_000,
    "curve unknown": 10_000,
    "web": 10_000,
}
# What the daemon and its children make with the module `secrets` and nobody but its owner may see.
MAKERS = {
    "farm.leasing.sessions": "match keys",
    "farm.control.worker_door": "tokens of workers",
    "farm.fleet.rpc_server": "the secrets of phones' servers",
    "farm.control.accounts": "tokens for the page",
    "farm.web.session": "sessions of the page, and their CSRF words",
}
WARM = 10  # a tenth of the messages go first: caches and pools are filled then
GROWTH_BYTES = 32 << 20  # of daemon and gate: pools of allocators come and go by 10; 90,000 messages that stay are more
AT_ONCE = 20  # connections

HTTP = (
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/plain\r\n\r\n",
    (
        b"POST /sign-in HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/x-www-form-urlencoded\r\n"
        b"Content-Length: 16\r\n\r\ntoken=farm_&to=/"
    ),
    b"GET /../../etc/passwd HTTP/1.1\r\nHost: evil.example\r\nCookie: farm_session=x\r\n\r\n",
)


def signed_in(url, token):
    """A session of the page: its cookie and its csrf."""
    with httpx.Client(base_url=url) as browser:
        answer = browser.post("/sign-in", data={"token": token, "to": "/"})
        assert answer.status_code == 303, answer.text
        csrf = re.search(r'name="csrf" value="([^"]+)"', browser.get("/").text)
        assert csrf
        return browser.cookies["farm_session"], csrf[1]


def requests_of(cookie, csrf):
    """What a browser that is signed in sends, as a seed of garbage."""
    body = f"csrf={csrf}".encode()
    head = b"Host: 127.0.0.1\r\nCookie: farm_session=" + cookie.encode() + b"\r\n"
    form = b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: %d\r\n\r\n" % len(body)
    return (
        *HTTP,
        b"GET / HTTP/1.1\r\n" + head + b"\r\n",
        b"POST /devices/x/service HTTP/1.1\r\n" + head + form + body,
    )


@pytest.fixture(scope="module")
def gate():
    with tempfile.TemporaryDirectory(prefix="farm-g-") as folder, running_gate(Path(folder)) as gate:
        yield gate


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


def key_of(farm, name, role, folder):
    """A new account's key file."""
    path = folder / f"{name}.key"
    path.write_text(key_file(farm.client.call("auth.new", name=name, role=role)))
    path.chmod(0o600)
    return path


# -- listeners ---------------------------------------------------------------------------------------------------------


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
        daemon.wait(30)


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


# -- accounts through the command line ---------------------------------------------------------------------------------


def remote(key, *arguments):
    """A `farm` command as somebody elsewhere runs it: no socket, a key."""
    mine = {name: value for name, value in environment().items() if not name.startswith("FARM_")}
    command = [sys.executable, "-m", "farm", "--key", str(key), *arguments]
    return subprocess.run(command, env=mine, capture_output=True, text=True, timeout=120, check=False)


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
    assert re.search(r"ann +user +key ann from 127\.0\.0\.1 +job\.submit +shell-\w+ +ok", told)
    assert re.search(rf"device\.service +{phone} +not_allowed", told)


def test_the_python_client_works_from_elsewhere(farm, tmp_path):
    path = key_of(farm, "dora", "user", tmp_path)
    model = tmp_path / "words"
    model.write_bytes(os.urandom(3 << 20))
    with Client(key=path) as client, Client(str(find(key=path, environ={})), key=path) as same:
        assert client.status().devices[0].name == same.devices()[0].name
        (result,) = client.shell("echo from $(id -un)", on="android")
        assert result.stdout == "from shell\n"
        kinds = [event.kind for event in same.events(since=0, subject=result.job.id, follow=False)]
    assert "job.done" in kinds
    with ControlClient(find(key=path, environ={})) as raw:
        assert raw.get_artifact(raw.put_artifact(model)) == model.read_bytes()


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
            if role.word != "viewer":
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


# -- garbage -----------------------------------------------------------------------------------------------------------


class Noise:
    """Garbage for every port, the same for the same seed."""

    def __init__(self, farm, gate, key, part, http=HTTP):
        self.random = random.Random(SEED + part)
        self.farm, self.gate = farm, gate
        self.key = read_key(key)[0]
        self.status = farm.status()
        self.remote = find(key=key, environ={})
        self.http = http

    def words(self, *names):
        seeds = tuple(seed for name in names for seed in TARGETS[name].seeds)
        return mutated(self.random.choice(seeds), self.random, seeds)

    async def send(self, counts):
        makers = {
            "tvm": lambda count: self.streams(
                self.status["tracker"]["port"], count, lambda: self.words("tracker", "session-hello")[1:]
            ),
            "gate": lambda count: asyncio.to_thread(self.packets, count),
            "web": lambda count: self.streams(
                int(self.status["web"].rstrip("/").rpartition(":")[2]), count,
                lambda: mutated(self.random.choice(self.http), self.random, self.http),
            ),
            "control": lambda count: self.messages(f"ipc://{self.farm.socket}", count),
            "worker": lambda count: self.messages(f"ipc://{self.worker_socket()}", count),
            "curve": lambda count: self.messages(str(self.remote), count, known=True),
            "curve unknown": lambda count: self.streams(self.remote.port, count, lambda: self.words("control-request")),
        }  # fmt: skip
        for name, count in counts.items():
            await makers[name](count)

    def packets(self, count):
        """Datagrams to the gate's socket over connections that bring a few and leave."""
        seeds = TARGETS["gate"].seeds
        while count > 0:
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as daemon:
                daemon.settimeout(5)
                daemon.connect(str(self.gate.socket))
                for _ in range(min(count, self.random.randint(1, 10))):
                    count -= 1
                    daemon.send(mutated(self.random.choice(seeds), self.random, seeds) or b"x")

    def worker_socket(self):
        return next(path for path in self.farm.folder.rglob("worker.sock"))

    async def streams(self, port, count, make):
        """Connections that each bring a few messages and leave, some before they are answered."""
        limit = asyncio.Semaphore(AT_ONCE)

        async def one(some, patient):
            async with limit:
                with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                    reader, writer = await asyncio.open_connection("127.0.0.1", port)
                    try:
                        for data in some:
                            writer.write(data)
                        await writer.drain()
                        if patient:
                            writer.write_eof()
                            async with asyncio.timeout(1):
                                await reader.read(65536)
                    finally:
                        writer.transport.abort()

        while count > 0:
            batch = []
            for _ in range(AT_ONCE * 5):
                some = [make() for _ in range(min(count, self.random.randint(1, 20)))]
                count -= len(some)
                batch.append(one(some, self.random.random() < 0.2))
                if count <= 0:
                    break
            await asyncio.gather(*batch)

    async def messages(self, endpoint, count, *, known=False):
        """ZeroMQ messages over connections that are used for a while; answers are read."""
        context = zmq.asyncio.Context()
        try:
            while count > 0:
                opened = context.socket(zmq.DEALER)
                opened.linger = 1000
                if known:
                    opened.curve_serverkey = self.key.server_key.encode()
                    opened.curve_publickey = self.key.public_key.encode()
                    opened.curve_secretkey = self.key.secret_key.encode()
                opened.connect(endpoint)
                for _ in range(min(count, 1000)):
                    body = frames(self.words("control-request", "control-reply", "gate")) or [b""]
                    await opened.send_multipart(body)
                    count -= 1
                    while await opened.poll(0):
                        await opened.recv_multipart()
                while await opened.poll(100):
                    await opened.recv_multipart()
                opened.close()
        finally:
            context.destroy(linger=1000)


def size_of(*pids):
    """Memory and descriptors of processes, when what was closed is closed there too."""
    processes = [psutil.Process(pid) for pid in pids]
    return sum(each.memory_info().rss for each in processes), sum(each.num_fds() for each in processes)


def serves(farm):
    """People, stock clients and browsers are served, as soon as what was sent before has been read."""
    with ControlClient(farm.socket, first_sign_s=60.0) as client:
        client.call("status")
    assert farm.farm("shell", "--on", "android", "--", "echo alive").stdout == "alive\n"
    urllib.request.urlopen(farm.status()["web"], timeout=10).close()

    async def stock():
        client = await RawTracker.connect(farm.tracker()[1])
        client.sock.close()

    asyncio.run(stock())


def test_garbage_on_every_port_moves_nothing(farm, gate, tmp_path):
    both = farm.daemon.process.pid, gate.process.pid
    key = key_of(farm, "mallory", "viewer", tmp_path)
    token = farm.client.call("auth.new", name="mallory", role="viewer", web=True)["token"]
    http = requests_of(*signed_in(farm.status()["web"], token))
    asyncio.run(Noise(farm, gate, key, 1, http).send({name: count // WARM for name, count in MESSAGES.items()}))
    serves(farm)
    memory, descriptors = size_of(*both)
    asyncio.run(Noise(farm, gate, key, 2, http).send({name: count - count // WARM for name, count in MESSAGES.items()}))
    serves(farm)
    until(
        lambda: size_of(*both)[1] <= descriptors + 8
    )  # connections that were left are closed within their time limits
    assert size_of(*both)[0] - memory < GROWTH_BYTES
    said = farm.daemon.log.read_text(errors="replace")
    for sender in (f"uid {os.geteuid()} pid {os.getpid()}", "key mallory from 127.0.0.1"):  # it did arrive
        assert re.search(rf"{sender} sent garbage, 10000 so far", said), sender
    rows = farm.client.call("audit.list", verb="auth.sign_in", limit=1000)["rows"]
    assert "wrong_token" in {row["outcome"] for row in rows}  # it came as far as the tokens
    assert "a daemon (pid" in gate.said
    assert "is no TVM client" in gate.said
    assert re.search("a message from .* was refused", said)  # what began like a tracker's client
    assert (farm.daemon.process.pid, gate.process.pid) == both
    assert max(farm.daemon.log.stat().st_size, gate.log.stat().st_size) < 4 << 20  # told, not repeated
    assert sum(MESSAGES.values()) == 100_000
