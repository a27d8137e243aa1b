"""The RPC server on a phone, driven through `rpc_supervise.sh` and `reap.sh`; every call is one shell round trip."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from shlex import quote

from farm.adb.client import AdbClient
from farm.adb.errors import AdbTimeout
from farm.common.errors import Code, PhoneError
from farm.common.phone_text import WORD, plain, whole_number
from farm.devices.server.phone_paths import REAP, ROOT, SUPERVISE

FIRST_PORT, PORT_END = 5000, 5100  # on the phone's own loopback; a port stays taken about 60 s after a session
START_TIMEOUT_S = 20.0  # binding takes milliseconds; ending a stuck predecessor up to 3 s
STOP_TIMEOUT_S = 15.0
REAP_TIMEOUT_S = 10.0  # the script itself gives up after about 3 s
FOLLOW_START_TIMEOUT_S = 10.0
SECRET_BYTES = 16
_EVIDENCE_CHARS = 2000
_STUCK = "failed processes do not die"  # as the scripts say it
# For a phone whose scripts were removed: as `end_named` of rpc_supervise.sh, without looking whether all of it dies.
_END_WITHOUT_SCRIPTS = (
    f"for each in $(grep -l -e '[-]-work-dir={ROOT}/run/work[.]' /proc/[0-9]*/cmdline 2>/dev/null);"
    " do each=${each%/cmdline}; kill -9 ${each#/proc/}; done"
)


class StuckProcessError(PhoneError):
    """Processes on the phone survive SIGKILL."""

    code = "stuck_process"

    @classmethod
    def of(cls, output: str) -> StuckProcessError:
        """As a device script says it."""
        return cls(
            plain(output.strip().removeprefix("failed ").splitlines()[0]),
            hint="a process is stuck in a driver: reboot the phone (farm device reboot NAME)",
            evidence=output[-_EVIDENCE_CHARS:],
        )


script_error = partial(PhoneError, code=Code.SCRIPT_FAILED)


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server we started. `secret` is its key in TVM's handshake: who does not know it gets no session."""

    port: int
    bundle: str
    secret: str = field(repr=False)

    @property
    def secret_sha256(self) -> str:
        """The secret's hash, as the phone's state file holds it."""
        return hashlib.sha256(self.secret.encode()).hexdigest()

    @property
    def id(self) -> str:
        """The start's name on the phone."""
        return self.secret_sha256[:16]


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """The answer of `rpc_supervise.sh status`."""

    adoptable: bool  # alive, supervised, of this boot, with the bundle and secret asked for
    why: str = ""  # why not
    port: int = 0
    sessions: int = 0  # processes that sessions have left or still use
    bundle: str = ""
    secret_sha256: str = ""


def parse_status(text: str) -> ServerStatus:
    """Read the status lines; anything unexpected means: not adoptable."""
    values: Mapping[str, str] = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    port = whole_number(values.get("port", ""))
    adoptable = values.get("adoptable") == "yes" and 0 < port < 65536
    why = "" if adoptable else values.get("why", "its state cannot be read")
    sessions, bundle = whole_number(values.get("sessions", "")), values.get("bundle", "")
    return ServerStatus(adoptable, why, port, sessions, bundle, values.get("secret_sha256", ""))


class RpcServer:
    """The server's life on one phone."""

    def __init__(self, client: AdbClient, serial: str) -> None:
        self._client = client
        self._serial = serial

    async def start(self, bundle: str) -> RunningServer:
        """Replace whatever runs by a fresh server of `bundle` (a hash), bound to the phone's loopback.

        Raises:
            PhoneError: it did not bind, while the phone answered; the evidence is what it printed.
            StuckProcessError: what ran before survives SIGKILL.
            AdbError: phone or link failed.
        """
        server = RunningServer(0, bundle, secrets.token_hex(SECRET_BYTES))
        command = (
            f"FARM_SECRET={server.secret} sh {SUPERVISE} start {quote(bundle)} {server.secret_sha256}"
            f" {FIRST_PORT} {PORT_END}"
        )
        try:
            output = await self._run(command, START_TIMEOUT_S)
        except AdbTimeout:
            said = await self.log()  # raises if the phone itself hangs
            output = f"failed it did not bind within {START_TIMEOUT_S:g} s\n{said}"
        first, _, rest = output.partition("\n")
        words = first.split()
        if words[:1] == ["started"]:
            port = whole_number(_words(first).get("port", ""))
            if 0 < port < 65536:
                return RunningServer(port, bundle, server.secret)
        if first.startswith(_STUCK):
            raise StuckProcessError.of(output)
        reason = first.removeprefix("failed ").strip() or "it said nothing"
        raise PhoneError(
            f"the RPC server did not start: {reason}",
            Code.SERVER_NOT_STARTED,
            hint="farm bundle verify; the phone's own words are in the evidence",
            evidence=rest[-_EVIDENCE_CHARS:],
        )

    async def find(self, secret: str) -> tuple[RunningServer | None, int]:
        """The server of that secret, if it runs on the phone, and the number of its sessions' processes.

        Raises:
            AdbError: phone or link failed.
        """
        status = parse_status(await self._run(f"[ ! -f {SUPERVISE} ] || sh {SUPERVISE} status", REAP_TIMEOUT_S))
        server = RunningServer(status.port, status.bundle, secret)
        if not status.adoptable or server.secret_sha256 != status.secret_sha256:
            return None, 0
        return server, status.sessions

    async def follow(self, server: RunningServer) -> str:
        """Wait until the server is dead; returns how it ended.

        Raises:
            StuckProcessError: it is dead, and something it left survives SIGKILL.
            AdbError: the link was lost; the server may well live.
        """
        stream = await self._client.open_shell(
            self._serial, f"sh {SUPERVISE} follow {server.id}", timeout_s=FOLLOW_START_TIMEOUT_S
        )
        async with stream:
            async for line in stream.lines():
                if line.startswith("died"):
                    how = describe_death(line)
                    if "stuck=" in line:
                        raise StuckProcessError.of(f"{how}; processes do not die: {_words(line)['stuck']}")
                    return how
        return "the phone's shell ended without a word about the server"

    async def reap(self) -> bool:
        """Kill the processes that sessions left; returns whether the server itself is alive.

        Raises:
            StuckProcessError: something survives SIGKILL.
        """
        output = (await self._run(f"sh {REAP}", REAP_TIMEOUT_S)).strip()
        if output.startswith("failed"):
            raise StuckProcessError.of(output)
        if "server=" not in output:
            raise script_error("reap.sh did not say what it did", evidence=output[-_EVIDENCE_CHARS:])
        return "server=alive" in output

    async def stop(self) -> None:
        """End the server and all it left; nothing to do where there is none."""
        command = f"if [ -f {SUPERVISE} ]; then sh {SUPERVISE} stop; else {_END_WITHOUT_SCRIPTS}; fi"
        output = await self._run(command, STOP_TIMEOUT_S)
        if output.startswith("failed"):
            raise StuckProcessError.of(output)

    async def clean(self) -> None:
        """End the server and remove everything of ours from the phone, verified."""
        command = (
            f"if [ -f {SUPERVISE} ]; then sh {SUPERVISE} clean; else {_END_WITHOUT_SCRIPTS}; rm -rf {ROOT}; fi;"
            f" [ ! -e {ROOT} ] && echo gone"
        )
        output = await self._run(command, STOP_TIMEOUT_S)
        if output.startswith("failed"):
            raise StuckProcessError.of(output)
        if "gone" not in output.split():
            raise PhoneError(f"{ROOT} is still on the phone", evidence=output[-_EVIDENCE_CHARS:])

    async def log(self) -> str:
        """The server's output: its first and its latest lines."""
        return await self._run(f"sh {SUPERVISE} log", STOP_TIMEOUT_S)

    async def _run(self, command: str, timeout_s: float) -> str:
        result = await self._client.shell(self._serial, command, timeout_s=timeout_s)
        return result.text or result.output


def describe_death(line: str) -> str:
    """One phrase of a `died status=N at=T` line."""
    status = _words(line).get("status", "")
    if status.isascii() and status.isdigit() and len(status) < 10:
        code = int(status)
        return f"the RPC server died of signal {code - 128}" if code > 128 else f"the RPC server exited with {code}"
    return f"the RPC server is gone ({plain(status, WORD) or 'unknown'})"


def _words(line: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in line.split() if "=" in word)
