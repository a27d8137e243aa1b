"""The lab process: boots virtual phones, plugs them into an adb server, and takes orders on a control socket.

    python -m farm.simulation.lab --dir D --adb-socket tcp:127.0.0.1:PORT --phone pixel=oneplus-12 --phone two=galaxy-s9

Prints `lab ready` when all phones are booted. D/control.sock takes JSON lines, answered in order per connection:
`{"id": 1, "do": "fault", "phone": "pixel", "name": "unplug", "arguments": {}}`, also `status`, `wait`, `services`,
`add`, `remove`, `swap` and `hub`. SIGTERM and SIGINT end everything; when this process is killed, the kernel ends its
phones.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import gc
import json
import os
import signal
import socket
import sys
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm.adb.client import AdbClient
from farm.common.errors import ExitCode, FarmError, HostError, UserError
from farm.simulation.adb_port import swap_ports
from farm.simulation.control import CONTROL_SOCKET, EVERY_PHONE, READY_LINE
from farm.simulation.lab_faults import FaultInjector
from farm.simulation.lab_phone import LabPhone
from farm.simulation.lab_userland import Watcher
from farm.simulation.namespaces import Isolation
from farm.simulation.profiles import choose, load_profile
from farm.simulation.usb_hubs import HostProgramOutput, Hubs, parent_of, write_host_programs
from farm.simulation.world import WorldSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

USB = "usb"  # folder of the lab: its hubs as sysfs shows them
MAX_LINE_BYTES = 1024 * 1024
_MAX_SOCKET_PATH_BYTES = 107  # sun_path
_PIECE = frozenset("abcdefghijklmnopqrstuvwxyz0123456789._-")

# What `wait` can wait for.
CONDITIONS: dict[str, Callable[[LabPhone], bool]] = {
    "online": lambda phone: phone.online,
    "not_online": lambda phone: not phone.online,
    "off": lambda phone: not phone.powered,
    "on": lambda phone: phone.powered,
    "unplugged": lambda phone: not phone.plugged,
    "key_shown": lambda phone: bool(phone.key_shown),
}


class Lab:
    """The phones of one lab and people's orders to them."""

    def __init__(
        self,
        directory: Path,
        adb_socket: str,
        *,
        isolation: Isolation | None = None,
        data_bytes: int | None = None,
        expose_python: bool = False,
        arm64: Path | None = None,
        opencl: Path | None = None,
        plugged: bool = True,
    ) -> None:
        self.directory = directory
        self.done = asyncio.Event()
        self._adb = AdbClient(adb_socket) if adb_socket else None
        self._isolation = isolation
        self._data_bytes = data_bytes
        self._expose_python = expose_python
        self._arm64 = arm64
        self._opencl = opencl
        self._plugged = plugged
        self._watcher = Watcher()
        self.hubs = Hubs(directory / USB)
        write_host_programs(directory)
        self._phones: dict[str, tuple[LabPhone, FaultInjector]] = {}

    def add(self, name: str, profile: str, place: str = "") -> LabPhone:
        """Boot one more phone, on that USB place if any."""
        if not name or not set(name) <= _PIECE or name.startswith((".", "-")):
            raise UserError(f"a phone cannot be called {name!r}", hint="use lower case letters, digits, . _ -")
        if name in self._phones:
            raise UserError(f"there is a phone called {name} already", hint="choose another name")
        choice = choose(profile)
        load_profile(choice.profile)
        if choice.arm64 and self._arm64 is None:
            raise UserError(
                f"{profile}: this lab has no programs for arm64 phones", hint="start it with --arm64 FOLDER"
            )
        if choice.opencl and self._opencl is None:
            raise UserError(
                f"{profile}: this lab has no OpenCL driver for phones", hint="start it with --opencl FOLDER"
            )
        if choice.opencl and choice.arm64:
            raise UserError(
                f"{profile}: AArch64 code cannot use the host's OpenCL driver", hint="leave out one of them"
            )
        spec = WorldSpec(
            name=name,
            directory=self.directory / name,
            profile=choice.profile,
            isolation=self._isolation,
            data_bytes=self._data_bytes,
            expose_python=self._expose_python,
            arm64=self._arm64 if choice.arm64 else None,
            rooted=choice.rooted,
            opencl=self._opencl if choice.opencl else None,
        )
        phone = LabPhone(spec, self._adb, self._watcher, plugged=self._plugged)
        if place:
            self.hubs.add(phone, place)
            phone.on_change = self.hubs.refresh
        phone.start()
        self._phones[name] = (phone, FaultInjector(phone))
        return phone

    async def close(self) -> None:
        """Switch every phone off."""
        for phone, _ in self._phones.values():
            await phone.close()
        self._phones.clear()
        self._watcher.close()

    async def perform(self, message: dict[str, Any]) -> object:
        """Perform one control message."""
        action = message.get("do")
        if action == "status":
            return [asdict(phone.status()) for phone, _ in self._phones.values()]
        if action == "fault":
            arguments = message.get("arguments", {})
            if not isinstance(arguments, dict):
                raise UserError("the arguments of a fault are an object", hint='as in {"level": 3}')
            pairs = self._select(message.get("phone"))
            return {
                phone.spec.name: await injector.perform(str(message.get("name")), arguments)
                for phone, injector in pairs
            }
        if action == "wait":
            return await self._wait(message)
        if action == "services":
            return await self._one(message.get("phone")).ask({"do": "services"})
        if action == "add":
            return asdict(self.add(*(str(message.get(key, "")) for key in ("name", "profile", "place"))).status())
        if action == "remove":
            for phone, _ in self._select(message.get("phone")):
                del self._phones[phone.spec.name]
                self.hubs.remove(phone)
                await phone.close()
            return None
        if action == "swap":
            one, other = self._one(message.get("phone")), self._one(message.get("other"))
            if one.plugged or other.plugged:
                raise UserError("phones swap their serials while they are unplugged", hint="fault unplug, for both")
            swap_ports(one, other)
            return None
        if action == "hub":
            await self.hubs.set_plugged(str(message.get("hub")), plugged=message.get("plugged") is True)
            return None
        if action in {"uhubctl", "usb_power"}:
            return asdict(await self._run_host_program(action, list(map(str, message.get("arguments", [])))))
        raise UserError(
            f"the lab cannot {action!r}",
            hint="use status, fault, wait, services, add, remove, swap or hub",
        )

    async def _run_host_program(self, name: str, arguments: list[str]) -> HostProgramOutput:
        if name == "uhubctl":
            return await self.hubs.uhubctl(arguments)
        if len(arguments) != 2 or arguments[0] not in {"on", "off"}:
            return HostProgramOutput(2, err="usage: usb-power on|off PLACE\n")
        await self.hubs.set_port(*parent_of(arguments[1]), on=arguments[0] == "on")
        return HostProgramOutput()

    async def _wait(self, message: dict[str, Any]) -> object:
        name, timeout_s = message.get("condition"), message.get("timeout_s", 10.0)
        condition = CONDITIONS.get(str(name))
        if condition is None:
            raise UserError(f"no such condition: {name}", hint=f"use {', '.join(CONDITIONS)}")
        if not isinstance(timeout_s, (int, float)) or isinstance(timeout_s, bool) or timeout_s < 0:
            raise UserError(f"timeout_s cannot be {timeout_s!r}", hint="give seconds")
        pairs = self._select(message.get("phone"))
        try:
            async with asyncio.timeout(timeout_s):
                for phone, _ in pairs:
                    await phone.until(partial(condition, phone))
        except TimeoutError as error:
            late = [phone.spec.name for phone, _ in pairs if not condition(phone)]
            raise HostError(f"not {name} within {timeout_s:g} s: {', '.join(late)}") from error
        return None

    def _select(self, name: object) -> list[tuple[LabPhone, FaultInjector]]:
        if name == EVERY_PHONE:
            return list(self._phones.values())
        pair = self._phones.get(str(name))
        if pair is None:
            raise UserError(f"no such phone: {name}", hint=f"the lab has {', '.join(self._phones) or 'none'}")
        return [pair]

    def _one(self, name: object) -> LabPhone:
        pairs = self._select(name)
        if len(pairs) != 1:
            raise UserError(f"this is for one phone, not for {len(pairs)}", hint="name it")
        return pairs[0][0]


async def serve_control(lab: Lab, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer one client's lines until it hangs up."""
    try:
        while line := await reader.readline():
            writer.write(json.dumps(await _answer(lab, line)).encode() + b"\n")
            await writer.drain()
    except (ConnectionError, ValueError):
        return  # the client is gone, or sent a line longer than any order
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def _answer(lab: Lab, line: bytes) -> dict[str, object]:
    number: object = None
    try:
        message = json.loads(line)
        if not isinstance(message, dict):
            raise UserError("an order is a JSON object", hint='as in {"id": 1, "do": "status"}')
        number = message.get("id")
        return {"id": number, "ok": True, "value": await lab.perform(message)}
    except json.JSONDecodeError as error:
        wrong: FarmError = UserError(f"not JSON: {error}")
    except FarmError as error:
        wrong = error
    except OSError as error:
        wrong = HostError(f"the host refused: {error}")
    return {
        "id": number,
        "ok": False,
        "error": {"code": wrong.code, "fault": wrong.fault, "message": wrong.message, "hint": wrong.hint},
    }


async def run_lab(lab: Lab, phones: Sequence[tuple[str, str, str]]) -> None:
    """Boot the phones, say that all are up, and serve until told to end."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lab.done.set)
    try:
        for name, profile, place in phones:
            lab.add(name, profile, place)
            await asyncio.sleep(0)  # the ones that are up may go online meanwhile
            if lab.done.is_set():
                return
        await _serve_until_done(lab)
    finally:
        await lab.close()


async def _serve_until_done(lab: Lab) -> None:
    clients: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        clients.add(task)
        try:
            # asyncio's streams report a cancelled task as an error; the end of the lab is none.
            with suppress(asyncio.CancelledError):
                await serve_control(lab, reader, writer)
        finally:
            clients.discard(task)

    with _control_socket(lab.directory) as sock:
        server = await asyncio.start_unix_server(serve, sock=sock, limit=MAX_LINE_BYTES)
        sys.stdout.write(READY_LINE + "\n")
        sys.stdout.flush()
        await lab.done.wait()
        server.close()
        for task in clients:
            task.cancel()
        await asyncio.gather(*clients, return_exceptions=True)


@contextmanager
def _control_socket(directory: Path) -> Iterator[socket.socket]:
    """The listening control socket, for this user only."""
    path = directory / CONTROL_SOCKET
    if len(os.fsencode(path)) > _MAX_SOCKET_PATH_BYTES:
        raise UserError(f"{path} is too long for a socket", hint="choose a shorter --dir")
    path.unlink(missing_ok=True)  # of a lab that was killed: the folder's lock is ours
    with socket.socket(socket.AF_UNIX) as sock:
        before = os.umask(0o177)
        try:
            sock.bind(os.fspath(path))
        finally:
            os.umask(before)
        try:
            yield sock
        finally:
            path.unlink(missing_ok=True)


@contextmanager
def only_lab_in(directory: Path) -> Iterator[None]:
    """Keep a second lab out of the same folder; the kernel lets go of the lock when this process ends."""
    with (directory / "lab.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"another lab runs in {directory}", hint="choose another --dir") from error
        yield


def parse_phone(text: str) -> tuple[str, str, str]:
    """Name, profile and USB place (or none) of NAME=PROFILE[@PLACE] from the command line."""
    name, equals, rest = text.partition("=")
    profile, _, place = rest.partition("@")
    if not equals or not name or not profile:
        raise UserError(f"a phone is NAME=PROFILE, not {text!r}", hint="as in --phone pixel=oneplus-12")
    return name, profile, place


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `python -m farm.simulation.lab`."""
    parser = argparse.ArgumentParser(prog="farm.simulation.lab", description="Boot virtual phones.")
    parser.add_argument("--dir", type=Path, required=True, help="where the phones and the control socket live")
    parser.add_argument("--adb-socket", default="", help="the adb server to plug them into; none: they only listen")
    parser.add_argument("--phone", action="append", default=[], metavar="NAME=PROFILE[@PLACE]")
    parser.add_argument("--isolation", choices=[level.value for level in Isolation], help="default: the best possible")
    parser.add_argument("--data-bytes", type=int, help="/data as a file system of that size, so that it can fill up")
    parser.add_argument("--expose-python", action="store_true", help="phones see the host's Python (launcher bundles)")
    parser.add_argument("--arm64", type=Path, metavar="FOLDER", help="of farm.simulation.arm64, for PROFILE+arm64")
    parser.add_argument("--opencl", type=Path, metavar="FOLDER", help="of farm.simulation.opencl, for PROFILE+opencl")
    parser.add_argument("--lifeline", action="store_true", help="end when standard input does: with who started it")
    parser.add_argument("--owns-adb", action="store_true", help="end the adb server too")
    parser.add_argument("--unplugged", action="store_true", help="phones wait for `plug`")
    options = parser.parse_args(arguments)
    try:
        phones = [parse_phone(text) for text in options.phone]
        options.dir.mkdir(parents=True, exist_ok=True)
        with only_lab_in(options.dir):
            asyncio.run(_main(options, phones))
    except FarmError as error:
        detail = f" ({error.evidence})" if error.evidence else ""
        sys.stderr.write(f"error: {error.message}{detail}\n" + (f"  {error.hint}\n" if error.hint else ""))
        return error.exit_code
    except OSError as error:
        sys.stderr.write(f"error: {error}\n")
        return ExitCode.FAILED
    return ExitCode.OK


async def _main(options: argparse.Namespace, phones: Sequence[tuple[str, str, str]]) -> None:
    gc.freeze()  # phones are forked from here: what they share stays shared
    lab = Lab(
        options.dir.resolve(),
        options.adb_socket,
        isolation=Isolation(options.isolation) if options.isolation else None,
        data_bytes=options.data_bytes,
        expose_python=options.expose_python,
        arm64=options.arm64.resolve() if options.arm64 else None,
        opencl=options.opencl.resolve() if options.opencl else None,
        plugged=not options.unplugged,
    )
    if options.lifeline:
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), lab.done.set)
    await run_lab(lab, phones)
    if options.owns_adb:
        with suppress(FarmError):  # the daemon has ended it, unless that was killed
            await AdbClient(options.adb_socket).kill_server()


if __name__ == "__main__":
    sys.exit(main())
