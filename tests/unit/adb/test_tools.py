"""Calls of people to a phone, without a phone."""

import errno
import shutil
import struct
from types import SimpleNamespace

import pytest

from farm.adb import tools
from farm.adb.errors import AdbFailed
from farm.adb.shell import ShellResult
from farm.adb.tools import LEFT_FREE_BYTES
from farm.common.errors import Code, HostError
from tests.support.errors import raises_code
from tests.unit.adb.fake_server import ROOT

LARGE = f"{ROOT}/large"


@pytest.fixture
def pull(server, client, tmp_path):
    """Pulls a file of two megabytes; nothing of it may be left."""
    server.local(LARGE).write_bytes(bytes(2_000_000))
    yield lambda room=lambda _: None, path=LARGE, max_bytes=1 << 40: tools.pull(
        client, "FAKE1", path, tmp_path / "out", max_bytes=max_bytes, room=room
    )
    assert list(tmp_path.iterdir()) == []


async def test_a_pull_brings_no_more_than_it_may(pull):
    with raises_code(Code.TOO_LARGE, match=f"{LARGE} is larger than 1000000 bytes"):
        await pull(max_bytes=1_000_000)


async def test_a_device_is_refused_before_a_byte_is_read(pull):
    with raises_code(Code.NOT_A_FILE, match="/dev/zero is a device"):
        await pull(pytest.fail, "/dev/zero")


async def test_a_pull_reserves_space_before_it_takes_it(pull, tmp_path):
    asked = []

    def room(size_bytes):
        asked.append(size_bytes)
        assert (tmp_path / "out").stat().st_size < sum(asked)
        if len(asked) == 3:
            raise HostError("no room", Code.NO_ROOM)

    with raises_code(Code.NO_ROOM, match="no room"):
        await pull(room)
    assert asked == [65536] * 3


async def test_a_pull_leaves_the_disk_some_space(pull, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=LEFT_FREE_BYTES - 1))
    with raises_code(Code.NO_ROOM, match="nearly full"):
        await pull()


async def test_a_full_disk_is_the_hosts_fault(pull):
    def full(_size_bytes):
        raise OSError(errno.ENOSPC, "No space left on device")

    with raises_code(Code.NO_ROOM, match="the farm's disk is full"):
        await pull(full)


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
