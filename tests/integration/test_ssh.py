"""A stock TVM client on another machine: `ssh -L` to the one port, and nothing else is opened (docs/security.md)."""

import asyncio
import os
import pwd
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from farm.tvm_server import wire
from farm.tvm_server.wire import SessionCode
from tests.support.needs import missing_packages, needs
from tests.support.raw import RawTracker, open_session
from tests.support.tvm import free_port, wait_for_port
from tests.support.tvm_port import SessionPort
from tests.support.waiting import HANG_S, until

SSHD = os.environ.get("FARM_TEST_SSHD") or shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")

pytestmark = [
    pytest.mark.skipif(SSHD is None, reason=missing_packages("sshd")),
    pytest.mark.skipif(
        os.geteuid() == 0 and "sshd" not in {each.pw_name for each in pwd.getpwall()},
        reason="sshd as root needs its user sshd: apt install openssh-server",
    ),
    needs("ssh"),
]


@contextmanager
def tunnel(to_port):
    """`ssh -L` through an sshd of our own on loopback; the local end's port."""
    with tempfile.TemporaryDirectory(prefix="farm-ssh-") as name:
        folder, ssh_port, local_port = Path(name), free_port(), free_port()
        for key in ("host", "client"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True, timeout=HANG_S
            )
        (folder / "known").write_text(f"[127.0.0.1]:{ssh_port} {(folder / 'host.pub').read_text()}")
        (folder / "sshd_config").write_text(
            f"ListenAddress 127.0.0.1:{ssh_port}\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/client.pub\n"
            f"StrictModes no\nUsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nPidFile none\n"
            f"AllowTcpForwarding local\nPermitOpen 127.0.0.1:{to_port}\n"
        )
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # where it locks itself in before anybody is known
        login = pwd.getpwuid(os.geteuid()).pw_name
        daemon = [SSHD, "-D", "-e", "-f", folder / "sshd_config"]
        client = [
            "ssh", "-N", "-F", "none", "-i", folder / "client", "-o", f"UserKnownHostsFile={folder}/known",
            "-o", "ExitOnForwardFailure=yes", "-o", "BatchMode=yes", "-p", str(ssh_port),
            "-L", f"127.0.0.1:{local_port}:127.0.0.1:{to_port}", f"{login}@127.0.0.1",
        ]  # fmt: skip
        with (folder / "log").open("wb") as log:
            server = subprocess.Popen(daemon, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
            try:
                wait_for_port(ssh_port)
                there = subprocess.Popen(client, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
                try:
                    wait_for_port(local_port)
                    yield local_port
                finally:
                    there.terminate()
                    there.wait(HANG_S)
            except TimeoutError as error:
                raise AssertionError((folder / "log").read_text(errors="replace")) from error
            finally:
                server.terminate()
                server.wait(HANG_S)


async def test_a_stock_client_reaches_tracker_and_phone_through_one_forwarded_port():
    async with SessionPort() as lab:
        opened = tunnel(lab.door.port)
        port = await asyncio.to_thread(opened.__enter__)
        try:
            tracker = await RawTracker.connect(port)
            assert (await tracker.summary())["queue_info"]["android"]["free"] == 1
            code, (host, told_port, match_key) = await tracker.ask(wire.TrackerRequest("android", "", 1))
            tracker.close()
            assert (code, host, told_port) == (0, "127.0.0.1", lab.door.port)  # `-L 9190:127.0.0.1:9190` makes it so
            session, hello, _ = await open_session(port, match_key)
            assert hello.code is SessionCode.SUCCESS
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(session, b"through the tunnel")
            assert await loop.sock_recv(session, 100) == b"through the tunnel"
            session.close()
            await until(lambda: not lab.phone.open)
        finally:
            await asyncio.to_thread(opened.__exit__, None, None, None)
