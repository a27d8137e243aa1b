"""Calls of people to a phone, without a phone."""

import errno
import shutil
import struct
from types import SimpleNamespace

import pytest

from farm.adb import tools
from farm.adb.errors import AdbFailed
from farm.adb.host_protocol import SyncStat
from farm.adb.shell import ShellResult
from farm.adb.tools import LEFT_FREE_BYTES
from farm.common.errors import Code, HostError
from tests.support.errors import raises_code


class EndlessFile:
    """A file-transfer session with a phone whose file has no end."""

    @classmethod
    async def open(cls, _client, _serial):
        return cls()

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass

    async def stat(self, path):
        return SyncStat(0o20666 if path == "/dev/zero" else 0o100644, 0, 0)

    async def receive(self, _path):
        while True:
            yield bytes(65536)


@pytest.fixture
def pull(monkeypatch, tmp_path):
    """Pulls a file without an end."""
    monkeypatch.setattr(tools, "SyncSession", EndlessFile)
    yield lambda max_bytes, room=lambda _: None, path="/endless": tools.pull(
        None, "S", path, tmp_path / "out", max_bytes=max_bytes, room=room
    )
    assert list(tmp_path.iterdir()) == []


async def test_a_pull_brings_no_more_than_it_may(pull):
    with raises_code(Code.TOO_LARGE, match="/endless is larger than 1000000 bytes"):
        await pull(1_000_000)


async def test_a_device_is_refused_before_a_byte_is_read(pull):
    with raises_code(Code.NOT_A_FILE, match="/dev/zero is a device"):
        await pull(1_000_000, pytest.fail, "/dev/zero")


async def test_a_pull_reserves_space_before_it_takes_it(pull, tmp_path):
    asked = []

    def room(size_bytes):
        asked.append(size_bytes)
        assert (tmp_path / "out").stat().st_size < sum(asked)
        if len(asked) == 3:
            raise HostError("no room", Code.NO_ROOM)

    with raises_code(Code.NO_ROOM, match="no room"):
        await pull(1 << 40, room)
    assert asked == [65536] * 3


async def test_a_pull_leaves_the_disk_some_space(pull, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=LEFT_FREE_BYTES - 1))
    with raises_code(Code.NO_ROOM, match="nearly full"):
        await pull(1 << 40)


async def test_a_full_disk_is_the_hosts_fault(pull):
    def full(_size_bytes):
        raise OSError(errno.ENOSPC, "No space left on device")

    with raises_code(Code.NO_ROOM, match="the farm's disk is full"):
        await pull(1 << 40, full)


def printing(stdout):
    async def shell(_serial, _command, *, timeout_s):
        assert timeout_s > 0
        return ShellResult(stdout, b"", 0)

    return SimpleNamespace(shell=shell)


async def test_a_screenshot_has_the_size_that_its_header_states(tmp_path):
    picture = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 1080, 2400) + b"rest"
    assert await tools.screenshot(printing(picture), "S", tmp_path / "s.png") == (1080, 2400)
    assert (tmp_path / "s.png").read_bytes() == picture


@pytest.mark.parametrize("stdout", [b"", b"screencap: not found", b"\x89PNG\r\n\x1a\n\0"])
async def test_what_is_no_picture_is_refused(stdout, tmp_path):
    with pytest.raises(AdbFailed, match="gives no picture"):
        await tools.screenshot(printing(stdout), "S", tmp_path / "s.png")
    assert list(tmp_path.iterdir()) == []
