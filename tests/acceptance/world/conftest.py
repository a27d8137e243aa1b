"""Virtual phones whose adbd only runs commands, and the compiled RPC server."""

import contextlib
import json
import select
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from farm.simulation.machine import MESSAGE_LIMIT_BYTES
from farm.simulation.world import WorldSpec, boot
from tests.support.waiting import HANG_S


def run_commands(source):
    """An adbd that runs one command line after the other."""
    while True:
        select.select([source], [], [])
        received = source.receive()
        if received is None:
            return
        command, connection = received
        if connection is not None:
            connection.setblocking(True)
            connection.sendall(b"hello from " + subprocess.check_output(["/system/bin/getprop", "ro.serialno"]))
            connection.close()
            continue
        done = subprocess.run(
            source.machine.shell_argv(command.decode()), stdin=subprocess.DEVNULL, capture_output=True, timeout=HANG_S
        )
        answer = json.dumps([done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode()]).encode()
        for start in range(0, len(answer), MESSAGE_LIMIT_BYTES):
            source.send(answer[start : start + MESSAGE_LIMIT_BYTES])


def shell(phone, command):
    """Exit code, stdout, stderr of a command on the phone."""
    phone.line.send(command.encode())
    answer = b""
    while True:
        ready, _, _ = select.select([phone.line], [], [], HANG_S)
        assert ready, f"no answer to {command!r}"
        received = phone.line.receive()
        answer += received[0]
        if len(received[0]) < MESSAGE_LIMIT_BYTES:
            code, out, err = json.loads(answer)
            return code, out, err


@pytest.fixture
def folder():
    # Below /tmp, short and traversable: a phone's shell (uid 2000) has to reach nothing above its mounts.
    with contextlib.ExitStack() as cleanup:
        path = Path(tempfile.mkdtemp(prefix="farm-world-"))
        cleanup.callback(shutil.rmtree, path)
        yield path


@pytest.fixture
def phones(folder):
    """A function that boots phones; all are gone afterwards, with every process and mount."""
    booted = []

    def make(name="a", profile="oneplus-12", **options):
        phone = boot(WorldSpec(name, folder / name, profile, **options), run_commands)
        booted.append(phone)
        return phone

    yield make
    for phone in booted:
        phone.close()
    assert str(folder) not in Path("/proc/self/mountinfo").read_text()
