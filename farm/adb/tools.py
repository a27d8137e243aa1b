"""The one adapter over adbutils: what is not on a hot path (install, pull, screenshot, facts about a phone).

adbutils blocks, drops its timeouts once connected, sends with `send` and reads with single `recv`s, and starts a server
on everybody's port when it finds none. Here it runs in threads of its own, over sockets that we make: they keep a
timeout, send and read whole, reach a unix socket too, and are shut down when the caller gives up, so that no thread
stays behind. Imported lazily: it costs 164 ms.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import secrets
import shutil
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from farm.adb.connection import ServerAddress
from farm.adb.errors import AdbLinkLost, AdbServerUnreachable, AdbTimeout
from farm.adb.failures import failure
from farm.core.errors import HostError, UserError

STALL_TIMEOUT_S = 30.0  # between two bytes; a phone that hangs is told well before the caller's own timeout
INSTALL_TIMEOUT_S = 300.0
PULL_TIMEOUT_S = 600.0
SCREENSHOT_TIMEOUT_S = 30.0
INFO_TIMEOUT_S = 15.0
LEFT_FREE_BYTES = 256 << 20  # of the host's disk, by a pull: the database and everybody's uploads are on it too
_THREADS = 8  # calls at once; more wait
_CONNECT_TIMEOUT_S = 5.0
_REMOTE_PACKAGE = "/data/local/tmp/farm-install-{}.apk"

T = TypeVar("T")


class PullTooLargeError(UserError):
    """The file on the phone is larger than a pull may bring."""

    code = "too_large"


class NoRoomError(HostError):
    """The host's disk has no room for what comes from a phone."""

    code = "no_room"


@dataclass(frozen=True, slots=True)
class PhoneFacts:
    """What adb and the phone say of themselves, for support requests."""

    serial: str
    hardware_serial: str
    state: str
    devpath: str
    features: tuple[str, ...]
    product: str
    model: str
    device: str


class PhoneTools:
    """adbutils' conveniences on one adb server.

    Args:
        socket: adb's socket spec, as for AdbClient.
    """

    def __init__(self, socket: str) -> None:
        self._address = ServerAddress.parse(socket)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="adbutils")

    def close(self) -> None:
        """Lets the threads end; calls under way go on to their end."""
        self._threads.shutdown(wait=False)

    async def install(self, serial: str, package: Path) -> None:
        """Installs or replaces an .apk.

        Raises:
            AdbFailed: the phone's package manager refused; its words are the evidence.
        """
        remote = _REMOTE_PACKAGE.format(secrets.token_hex(8))

        def work(device: Any) -> None:
            try:
                device.sync.push(package, remote)
                device.install_remote(remote, clean=False, flags=["-r", "-t"])
            finally:
                _remove(device, remote)

        await self._call(serial, f"installing {package.name}", work, INSTALL_TIMEOUT_S)

    async def pull(
        self,
        serial: str,
        remote: str,
        local: Path,
        *,
        max_bytes: int,
        room: Callable[[int], None],
        timeout_s: float = PULL_TIMEOUT_S,
    ) -> int:
        """Copies a file from the phone; nothing of it stays when it fails. Returns its size in bytes.

        A phone's files may have no end (/dev/zero): their size is what comes. `room` is called in a thread before so
        many more bytes are written; what it raises ends the pull.

        Raises:
            PullTooLargeError: more than `max_bytes` came.
            NoRoomError: the host's disk is, or would be, full.
        """

        def work(device: Any) -> int:
            size = 0
            try:
                with local.open("wb") as file:
                    for chunk in device.sync.iter_content(remote):
                        size += len(chunk)
                        if size > max_bytes:
                            raise PullTooLargeError(
                                f"{remote} is larger than {max_bytes} bytes",
                                hint="pull it in parts (split on the phone)",
                            )
                        if shutil.disk_usage(local.parent).free < LEFT_FREE_BYTES:
                            raise NoRoomError(
                                f"the farm's disk is nearly full: a pull leaves {LEFT_FREE_BYTES >> 20} MB of it free",
                                hint="free disk space",
                                evidence=str(local.parent),
                            )
                        room(len(chunk))
                        file.write(chunk)
            except BaseException:
                local.unlink(missing_ok=True)
                raise
            return size

        return await self._call(serial, f"pulling {remote}", work, timeout_s)

    async def screenshot(self, serial: str, local: Path) -> tuple[int, int]:
        """Saves the screen as PNG; returns its width and height in pixels."""

        def work(device: Any) -> tuple[int, int]:
            image = device.screenshot(error_ok=False)
            local.parent.mkdir(parents=True, exist_ok=True)
            image.save(local, "PNG")
            return (int(image.width), int(image.height))

        return await self._call(serial, "a screenshot", work, SCREENSHOT_TIMEOUT_S)

    async def facts(self, serial: str, *, timeout_s: float = INFO_TIMEOUT_S) -> PhoneFacts:
        """What adb and the phone say of themselves."""

        def work(device: Any) -> PhoneFacts:
            return PhoneFacts(
                serial=serial,
                hardware_serial=str(device.getprop("ro.serialno") or ""),
                state=str(device.get_state()),
                devpath=str(device.get_devpath()),
                features=tuple(sorted(str(device.get_features()).split(","))),
                product=str(device.getprop("ro.product.name") or ""),
                model=str(device.getprop("ro.product.model") or ""),
                device=str(device.getprop("ro.product.device") or ""),
            )

        return await self._call(serial, "its facts", work, timeout_s)

    async def _call(self, serial: str, what: str, work: Callable[[Any], T], timeout_s: float) -> T:
        """Runs blocking work in a thread; on timeout or cancellation its sockets are shut down, which ends it."""
        sockets: list[socket.socket] = []
        loop = asyncio.get_running_loop()
        queued = self._threads.submit(_run, self._address, serial, work, sockets)
        running = asyncio.wrap_future(queued, loop=loop)
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(running)
        except TimeoutError as error:
            raise AdbTimeout(f"Phone {serial} did not finish {what} in {timeout_s:g} s.") from error
        finally:
            if not running.done() and not queued.cancel():  # one that has not begun never will
                for connected in tuple(sockets):
                    _shut(connected)
                running.add_done_callback(lambda done: done.cancelled() or done.exception())


class _WholeSocket(socket.socket):
    """Sends and receives all that was asked: adbutils does neither check nor repeat."""

    def send(self, data: Any, flags: int = 0) -> int:
        """Sends all of it."""
        self.sendall(data, flags)
        return len(data)

    def recv(self, size: int, flags: int = 0) -> bytes:
        """Receives `size` bytes, fewer only at the end of the stream."""
        data = super().recv(size, flags)
        while data and len(data) < size:
            more = super().recv(size - len(data), flags)
            if not more:
                break
            data += more
        return data


def _connect(address: ServerAddress) -> _WholeSocket:
    connected = _WholeSocket(socket.AF_UNIX if address.path else socket.AF_INET, socket.SOCK_STREAM)
    try:
        connected.settimeout(_CONNECT_TIMEOUT_S)
        connected.connect(address.path or (address.host, address.port))
        connected.settimeout(STALL_TIMEOUT_S)
    except BaseException:
        connected.close()
        raise
    return connected


def _run(address: ServerAddress, serial: str, work: Callable[[Any], T], sockets: list[socket.socket]) -> T:
    """In a thread: does the work with an adbutils device over our sockets; its errors become ours."""
    import adbutils
    from adbutils._adb import AdbConnection

    class Connection(AdbConnection):  # type: ignore[misc]  # adbutils has no types
        """Reaches our server only; the original starts one on port 5037 when it finds none."""

        def _safe_connect(self) -> socket.socket:
            connected = _connect(address)
            sockets.append(connected)
            return connected

    class Client(adbutils.AdbClient):  # type: ignore[misc]  # likewise
        def make_connection(self, timeout: float | None = None) -> Any:  # noqa: ARG002 - adbutils' signature
            return Connection("", 0)

    try:
        return work(Client("localhost", 1).device(serial))
    except adbutils.AdbTimeout as error:
        raise AdbTimeout(f"Phone {serial} said nothing for {STALL_TIMEOUT_S:g} s.", evidence=str(error)) from error
    except adbutils.AdbInstallError as error:
        raise failure(error.output, serial=serial) from error
    except adbutils.AdbError as error:
        raise failure(" ".join(map(str, error.args)), serial=serial) from error
    except ConnectionRefusedError as error:
        raise AdbServerUnreachable(f"No adb server answers on {address.spec}.", evidence=str(error)) from error
    except (TimeoutError, EOFError, ConnectionError) as error:
        raise AdbLinkLost(f"The link to phone {serial} ended or stalled.", evidence=str(error)) from error
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise NoRoomError("the farm's disk is full", hint="free disk space", evidence=str(error)) from error
    finally:
        for connected in sockets:
            _shut(connected)
            connected.close()


def _remove(device: Any, remote: str) -> None:
    """Takes our file off the phone; when the link is lost, what ended the work is the error to tell."""
    import adbutils

    with contextlib.suppress(adbutils.AdbError, OSError, EOFError):
        device.shell(["rm", "-f", remote])


def _shut(connected: socket.socket) -> None:
    """Ends both directions; a socket that is closed already is fine."""
    if connected.fileno() >= 0:
        try:
            connected.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # the other side was first
