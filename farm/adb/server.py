"""farm's own adb server: started, adopted, restarted; with its own key and home, away from the usual port 5037.

By default it listens on a unix socket (`localfilesystem:PATH`): measured to work with adb 29 and 36, 40 % faster than
loopback TCP, replaced cleanly after a crash, and closed to all other users by file permissions (docs/facts.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil

from farm.adb.client import AdbClient
from farm.adb.errors import AdbError, AdbServerUnreachable, failure
from farm.adb.program import AdbBinary, server_pid, socket_holder

START_TIMEOUT_S = 15.0  # measured 0.1 s with a warm disk; a cold, busy host must not fail
STOP_TIMEOUT_S = 1.0  # then SIGKILL: it has nothing to save
MANAGED_START_TIMEOUT_S = 15.0  # the manager restarts it within a second; a cold, busy host must not fail
DYING_TIMEOUT_S = 2.0  # shorter than the client's own timeout, so that a hanging server is tried once
KEYGEN_TIMEOUT_S = 30.0  # RSA 2048 on a busy small host
_POLL_S = 0.02
_UMASK = 0o077  # the server opens every phone: users get the adb of their lease
_LOG_LIMIT_BYTES = 8 << 20  # adb's log has filled whole disks (TVM PR 13172)
_LOG_TAIL_BYTES = 4000
_NO_EMULATOR_SCAN = "5554"  # ADB_LOCAL_TRANSPORT_MAX_PORT below the first emulator's port + 1

logger = logging.getLogger(__name__)


class AdbServer:
    """One adb server that farm owns.

    Args:
        binary: the adb program.
        socket: adb's socket spec.
        folder: the server's home, for example STATE/adb: `adbkey`, `adbkey.pub`, `server.log`. Made if missing.
        usb: whether it opens USB phones; False for tests and the demo.
    """

    def __init__(self, binary: AdbBinary, socket: str, folder: Path, *, usb: bool = True) -> None:
        self.binary = binary
        self.client = AdbClient(socket)
        self.folder = folder
        self._usb = usb
        self._process: subprocess.Popen[bytes] | None = None
        self._stays = False
        self._inherited: psutil.Process | None = None  # started by a daemon of this folder that was killed
        self._starting: asyncio.Task[int] | None = None

    @property
    def key(self) -> Path:
        """Farm's private adb key. Phones get `adbkey.pub` beside it."""
        return self.folder / "adbkey"

    @property
    def log(self) -> Path:
        """The server's output."""
        return self.folder / "server.log"

    @property
    def pid(self) -> int | None:
        """The process that farm started, now or before the daemon was killed; None for any other, or none."""
        if self._process is not None and self._process.poll() is None:
            return self._process.pid
        return self._inherited.pid if self._inherited is not None and self._inherited.is_running() else None

    def environment(self) -> dict[str, str]:
        """The environment of the server, and of any adb program that should talk to it."""
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self.folder),
            "ADB_SERVER_SOCKET": self.client.address.spec,
            "ADB_VENDOR_KEYS": str(self.key),
            "ADB_MDNS": "0",
            "ADB_USB": "1" if self._usb else "0",
            "ADB_LOCAL_TRANSPORT_MAX_PORT": _NO_EMULATOR_SCAN,
        }

    async def ensure(self) -> int:
        """Makes sure that a server answers: a running one, else ours. Returns its protocol version.

        On a unix socket it is always ours; on a port another user's is used. Several callers share one start. A
        version other than the binary's is not an error here: the watcher reports it.

        Raises:
            AdbPortTaken: another program listens there, and not as an adb server.
            AdbServerUnreachable: it could not be started, or the one there hangs.
        """
        if self._starting is None or self._starting.done():
            self._starting = asyncio.create_task(self._ensure(), name="adb-server-start")
        return await asyncio.shield(self._starting)

    async def restart(self) -> int:
        """Ends the running server, even if it hangs, and starts ours. Ends every phone's streams."""
        await self.stop(even_adopted=True)
        return await self.ensure()

    async def stop(self, *, even_adopted: bool = False) -> None:
        """Ends the server if farm started it. `even_adopted` also ends an adopted server."""
        if self._stays and not even_adopted:
            return
        if not even_adopted and self._starting not in (None, asyncio.current_task()):
            await asyncio.wait([self._starting])  # it continues without its callers, and would leave a server behind
        ended = self.pid is not None
        if self._process is not None:
            await asyncio.to_thread(_end, self._process)
            self._process = None
        elif self._inherited is not None:
            await asyncio.to_thread(_end, self._inherited)
            self._inherited = None
        elif even_adopted:
            await self._end_adopted()
        elif (left := await asyncio.to_thread(self._leftover)) is not None:
            await asyncio.to_thread(_end, left)
            ended = True
        if ended:
            self._remove_socket()

    def _remove_socket(self) -> None:
        """Remove the socket that adb leaves behind."""
        path = self.client.address.path
        if path.startswith("/"):
            with contextlib.suppress(OSError):
                Path(path).unlink()

    def _close_socket(self) -> None:
        """Close it to all other users: an earlier farm let its group in."""
        path = self.client.address.path
        if path.startswith("/"):
            with contextlib.suppress(FileNotFoundError):  # the server has just ended
                Path(path).chmod(0o777 & ~_UMASK)

    def keep_running(self) -> None:
        """Let the server outlive this process: `stop` does nothing. The next daemon of this folder adopts it."""
        self._stays = True

    def trim_log(self) -> None:
        """Empties the log when it is too long. The server appends, so it continues at the start."""
        if self.log.exists() and self.log.stat().st_size > _LOG_LIMIT_BYTES:
            os.truncate(self.log, 0)

    async def _ensure(self) -> int:
        # Also when ours was started: another adb program may have been faster, or have replaced its socket since.
        while True:
            version = await self._answer()
            if await self._is_usable():
                await asyncio.to_thread(self._end_displaced)
                return version
            await self._end_adopted()

    async def _answer(self) -> int:
        """The version of the running server. Starts ours if none runs."""
        deadline = time.monotonic() + DYING_TIMEOUT_S
        while True:
            try:
                return await self.client.version()
            except AdbServerUnreachable as absent:
                if absent.no_listener:
                    break
                if time.monotonic() > deadline:
                    raise  # a server hangs there: starting another would fail on its socket
            await asyncio.sleep(_POLL_S)  # a dying server's socket takes connections until its last thread is gone
        await self.stop()  # ours, if it is still on its way out
        await self._start()
        return await self._wait_until_it_answers()

    async def _is_usable(self) -> bool:
        """Whether the server that answers can be used: ours, or a server on a port that other users share.

        Every adb program starts a server where it finds none. On farm's own socket such a server has the key of its
        user, so each phone would wait until that key is accepted.
        """
        try:
            # The process that answers, not any with a socket of that name: a server may have replaced another's socket.
            pid = await asyncio.to_thread(server_pid, self.client.address)
        except (ConnectionRefusedError, FileNotFoundError):
            return False  # it has just ended
        except OSError:
            return True  # on a port: another user's. Farm's own socket: it hangs, and ServerWatcher decides
        if self._process is not None and self._process.pid == pid:
            return True
        self._inherited = await asyncio.to_thread(self._own_process, pid)
        if self._inherited is not None:
            await asyncio.to_thread(self._close_socket)
        if self._inherited is not None or not self.client.address.path:
            return True
        logger.warning("another adb program started a server on farm's socket (pid %d): it is replaced", pid)
        return False

    def _end_displaced(self) -> None:
        """End servers whose socket another has replaced: no client reaches them. Blocks."""
        path = self.client.address.path
        if not path:
            return
        with contextlib.suppress(OSError, psutil.Error):  # it has just ended: its users call `ensure` again
            answering = server_pid(self.client.address)
            for each in psutil.net_connections(kind="unix"):
                if each.laddr == path and each.pid not in (None, answering):
                    logger.warning("an adb server whose socket another has taken is ended (pid %d)", each.pid)
                    _end(psutil.Process(each.pid))

    def _own_process(self, pid: int) -> psutil.Process | None:
        """The process, if a daemon of this folder started it: no other program would ever end it."""
        try:
            process = psutil.Process(pid)
            return process if process.environ().get("HOME") == str(self.folder) else None
        except psutil.Error:
            return None  # another user's, or it ended meanwhile

    def _leftover(self) -> psutil.Process | None:
        """The server of a daemon that was killed, when this one ends before it has used it. Blocks."""
        holder = socket_holder(self.client.address)
        return None if holder is None or holder.pid is None else self._own_process(holder.pid)

    async def _start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        await asyncio.to_thread(ensure_key, self.binary, self.folder)
        self.trim_log()
        with self.log.open("ab") as log:
            # Not asyncio's: that kills what still runs when its loop is closed (`keep_running`).
            command = [str(self.binary.path), "-L", self.client.address.spec, "nodaemon", "server"]
            self._process = await asyncio.to_thread(
                lambda: subprocess.Popen(
                    command, env=self.environment(), cwd=self.folder, start_new_session=True, umask=_UMASK,
                    stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                )
            )  # fmt: skip

    async def _wait_until_it_answers(self) -> int:
        process = self._process
        assert process is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                version = await self.client.version()
            except AdbServerUnreachable:
                if (code := process.poll()) is not None:
                    raise await asyncio.to_thread(self._not_started, code) from None
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(_POLL_S)
            else:
                return version

    def _not_started(self, code: int) -> AdbError:
        with self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - _LOG_TAIL_BYTES))
            words = log.read().decode("utf-8", "replace")
        error = failure(words)
        holder = socket_holder(self.client.address)
        by = f"; {holder} holds {self.client.address.spec}" if holder else ""
        return type(error)(f"farm's adb server ended at once (exit {code}){by}.", hint=error.hint, evidence=words)

    async def _end_adopted(self) -> None:
        """Asks an adopted server to go. A hanging server is killed if it is an adb server of our own user."""
        try:
            await self.client.kill_server()
        except AdbServerUnreachable as error:
            if error.no_listener:
                return
            holder = await asyncio.to_thread(socket_holder, self.client.address)
            if holder is None or holder.pid is None or "adb" not in holder.command.split(" ")[0]:
                raise
            os.kill(holder.pid, signal.SIGKILL)
        await self._wait_until_gone()

    async def _wait_until_gone(self) -> None:
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while time.monotonic() < deadline:
            try:
                await self.client.version()
            except AdbServerUnreachable as error:
                if error.no_listener:
                    return  # else it ended after it had taken the connection
            await asyncio.sleep(_POLL_S)


class ManagedAdbServer(AdbServer):
    """A server that the service manager starts (farm-adb.service). It outlives the daemon, and so do its sessions."""

    async def stop(self, *, even_adopted: bool = False) -> None:
        """Only `restart` ends it. The manager then starts the next server."""
        if even_adopted:
            await self._end_adopted()

    def trim_log(self) -> None:
        """Nothing to do: its output goes to the journal."""

    async def _is_usable(self) -> bool:
        return True

    async def _start(self) -> None:
        return

    async def _wait_until_it_answers(self) -> int:
        deadline = time.monotonic() + MANAGED_START_TIMEOUT_S
        while True:
            try:
                return await self.client.version()
            except AdbServerUnreachable as absent:
                if time.monotonic() > deadline:
                    raise AdbServerUnreachable(
                        f"The service manager did not start the adb server on {self.client.address.spec}.",
                        hint="systemctl status farm-adb; journalctl -u farm-adb",
                    ) from absent
                await asyncio.sleep(_POLL_S)


def _end(process: subprocess.Popen[bytes] | psutil.Process) -> None:
    """SIGTERM, then SIGKILL; it may be no child of ours, gone, or stuck in a driver. Blocks."""
    for end in (process.terminate, process.kill):
        with contextlib.suppress(subprocess.TimeoutExpired, psutil.TimeoutExpired, psutil.NoSuchProcess):
            end()
            process.wait(STOP_TIMEOUT_S)
            return


def ensure_key(binary: AdbBinary, folder: Path) -> Path:
    """Makes `FOLDER/adbkey` with adb's own generator if it is missing, and makes it the one key a server there uses.

    A server offers phones the key of `$HOME/.android/adbkey` only (ADB_VENDOR_KEYS merely sign), and would generate one
    there: so those names are links to ours.

    Raises:
        AdbError: the generator failed; its words are the evidence.
    """
    key = folder / "adbkey"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not key.exists():
        try:
            done = subprocess.run(
                [str(binary.path), "keygen", str(key)], env={"HOME": str(folder), "PATH": os.environ.get("PATH", "")},
                stdin=subprocess.DEVNULL, capture_output=True, timeout=KEYGEN_TIMEOUT_S, check=False, umask=0o077,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise AdbServerUnreachable(f"farm's adb key could not be made: {error}", evidence=str(error)) from error
        if done.returncode != 0 or not key.exists():
            raise failure((done.stdout + done.stderr).decode("utf-8", "replace"))
    used = folder / ".android"
    used.mkdir(exist_ok=True, mode=0o700)
    for name in ("adbkey", "adbkey.pub"):
        link = used / name
        if not link.is_symlink():
            link.unlink(missing_ok=True)
            link.symlink_to(Path("..") / name)
    return key


def authorization_steps(serial: str, key: Path) -> str:
    """The walk-through for a phone that waits `unauthorized`, as text for a person."""
    return f"""\
Phone {serial} waits for someone to accept this host's adb key.

1. Unlock the phone and keep its screen on. The question "Allow USB debugging?" should be there.
2. Tick "Always allow from this computer", then tap Allow.
   (The key is {key.with_name(key.name + ".pub")}; it stays the same until someone deletes it.)
3. No question? Unplug the phone and plug it in again with the screen unlocked.
4. Still none? On the phone: Settings > Developer options > Revoke USB debugging authorizations, switch
   USB debugging off and on, then plug it in again. Set its USB mode to "File transfer" if it offers only charging.
5. Xiaomi, Redmi, POCO: also switch on "USB debugging (Security settings)". Huawei, Honor: also "Allow ADB debugging
   in charge only mode". Samsung: switch off "Auto Blocker".
6. A phone with a broken screen: put the line of the .pub file into /data/misc/adb/adb_keys (needs root).

farm notices by itself; `farm status` shows the phone as soon as it is accepted."""
