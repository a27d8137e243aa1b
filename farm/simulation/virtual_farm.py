"""A whole farm without a phone: the daemon in a process of its own, a real adb server, virtual phones.

Everything lives in a temporary folder, on loopback, on ports the kernel chose, and is gone when the context ends. The
demo, the end-to-end tests and the benchmarks use it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm.common.durations import many
from farm.common.errors import HostError, UserError
from farm.common.events import EPOCH_SHIFT
from farm.control.client import ControlClient
from farm.model.device import LIFE_EVENTS
from farm.simulation.farm_process import FarmProcess

if TYPE_CHECKING:
    from farm.simulation.control import LabClient

START_TIMEOUT_S = 60.0  # daemon up, on a loaded host
PATIENCE_S = 30.0  # for a daemon without a word: hosts of a demo start beside each other on one machine
COMMAND_TIMEOUT_S = 240.0  # it measures nothing: it ends a command that hangs
READY_TIMEOUT_S = 120.0  # every phone identified, provisioned and checked; a cold import of TVM alone may take 10 s

CONFIG = """\
[[adopt]]
match = "virtual=yes"
pool = "virtual"
[tvm]
port = 0
gate = "{gate}"
[web]
port = 0
[adb]
usb = false
"""


def _ignore(_: object) -> None:
    return


class DaemonProcess(FarmProcess):
    """`farm serve` in a process of its own; may be killed and started again on the same state."""

    def __init__(self, folder: Path, config: str = "", *, gate: Path | str = "") -> None:
        self.folder = folder
        self.runtime = folder / "run"
        self.config = folder / "farm.toml"
        self.config.write_text(CONFIG.replace("{gate}", str(gate)) + config, encoding="utf-8")
        folders = ("--state-dir", str(folder / "state"), "--runtime-dir", str(self.runtime))
        super().__init__(folder / "daemon.log", "serve", "--config", str(self.config), *folders)

    def start(self) -> ControlClient:
        """Start it and wait until it answers; returns a client of it."""
        process = self.launch()
        client = ControlClient(self.runtime / "control.sock", silent_after_s=PATIENCE_S)
        try:
            client.wait_until_up(START_TIMEOUT_S, alive=lambda: process.poll() is None)
        except HostError as error:
            client.close()
            why = self.start_error("the daemon", START_TIMEOUT_S)
            self.stop()
            raise why from error
        return client

    def keep_ports(self, port: int, *, web_port: int) -> None:
        """Let later starts take these ports in place of free ones. The file stays as it is: it may be reloaded."""
        self.wrapper = (*self.wrapper, "env", f"FARM_TVM__PORT={port}", f"FARM_WEB__PORT={web_port}")


class VirtualFarm:
    """A running daemon with virtual phones. Several threads may call `run`, `adb` and `farm`, but no other method."""

    def __init__(self, daemon: DaemonProcess, client: ControlClient, lab: LabClient, adb: Path) -> None:
        self.daemon = daemon
        self.client = client
        self.lab = lab
        self.folder = daemon.folder
        self.adb_path = adb
        self.adb_socket = str(self.status()["adb"]["socket"])  # the adb server outlives the daemon

    @property
    def socket(self) -> Path:
        """The daemon's control socket."""
        return self.client.path

    def status(self) -> dict[str, Any]:
        """The answer of `farm status`."""
        return self.client.call("status")

    def names(self) -> set[str]:
        """Names of the phones of this daemon, whose status also has those of a lab's other hosts."""
        status = self.status()
        return {row["name"] for row in status["devices"] if row.get("host") == status.get("host")}

    def tracker(self) -> tuple[str, int]:
        """Where stock TVM clients connect."""
        tracker = self.status()["tracker"]
        return tracker["host"], tracker["port"]

    def events(self, since: int = 0, *, timeout_s: float = READY_TIMEOUT_S) -> Iterator[dict[str, Any]]:
        """Events after `since` as they happen."""
        event = None
        with ControlClient(self.socket, silent_after_s=PATIENCE_S) as client:
            try:
                for event in client.stream("events", timeout_s, since=since):
                    yield event
            except TimeoutError as error:
                raise TimeoutError(f"not seen within {timeout_s:g} s; the last event was {event}") from error

    def wait_ready(
        self, count: int, on_step: Callable[[Mapping[str, Any]], None] = _ignore, since: int | None = None
    ) -> None:
        """Return when `count` phones are ready; `on_step` takes each `device.*` event.

        `since`: the number of an event, from which phones of all hosts of a lab count. None: the start of this run, and
        this daemon's phones.
        """
        ready: set[str] = set()
        # Events outlive the daemon, what they say of phones does not: only those of this run count.
        began = self.status()["seq"] >> EPOCH_SHIFT << EPOCH_SHIFT if since is None else since
        try:
            for event in self.events(began):
                if event["kind"].startswith("device."):
                    on_step(event)
                if event["kind"] in LIFE_EVENTS:
                    (ready.add if event["kind"] == "device.ready" else ready.discard)(event["subject"])
                if len(ready) >= count and (since is not None or len(ready & self.names()) >= count):
                    return
        except TimeoutError as error:
            raise HostError(f"only {len(ready)} of {count} phones became ready", evidence=str(error)) from error

    def run(self, *command: str, timeout_s: float = COMMAND_TIMEOUT_S) -> subprocess.CompletedProcess[str]:
        """Run a program that knows this farm: its adb server, its daemon."""
        return subprocess.run(
            command, env=self.environment(), capture_output=True, text=True, timeout=timeout_s, check=False
        )

    def environment(self) -> dict[str, str]:
        """Environment variables by which a program finds this farm's adb server and daemon; waits for a busy daemon.

        Commands give it 2 s, and the tests of a loaded host keep it busy for longer.
        """
        with contextlib.suppress(HostError), ControlClient(self.socket, silent_after_s=PATIENCE_S) as client:
            client.call("ping")
        return {**os.environ, "ADB_SERVER_SOCKET": self.adb_socket, "FARM_SOCKET": str(self.socket)}

    def adb(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the real adb against the farm's server."""
        return self.run(str(self.adb_path), *arguments)

    def farm(self, *arguments: str, timeout_s: float = COMMAND_TIMEOUT_S) -> subprocess.CompletedProcess[str]:
        """Run a `farm` command."""
        return self.run(sys.executable, "-P", "-m", "farm", *arguments, timeout_s=timeout_s)


def phones_of(profiles: Iterable[str]) -> dict[str, str]:
    """A virtual phone's name in the lab for each profile, or profile+arm64 (docs/virtual-phone.md)."""
    from farm.simulation.profiles import ARM64_SUFFIX, OPENCL_SUFFIX, ROOT_SUFFIX, choose, list_profiles

    phones = {f"virtual-{number}": profile for number, profile in enumerate(profiles, 1)}
    unknown = sorted({choose(text).profile for text in phones.values()} - set(list_profiles()))
    if unknown:
        raise UserError(
            f"there is no profile {unknown[0]!r}",
            hint=f"profiles: {', '.join(list_profiles())}; with {ARM64_SUFFIX} behind it the phone runs AArch64 code, "
            f"with {ROOT_SUFFIX} its shell is root, with {OPENCL_SUFFIX} its GPU computes",
        )
    return phones


def _on_hubs(lab: Path, config: str) -> str:
    """Configuration with the lab's hubs for the daemon; it looks for uhubctl as it starts."""
    from farm.simulation.usb_hubs import write_host_programs

    write_host_programs(lab)
    power = f"[power]\nuhubctl = '{lab}/bin/uhubctl'\n" if "[power]" not in config else ""
    return f"\n[usb]\nsysfs = '{lab}/usb'\n{power}"


@contextlib.contextmanager
def virtual_farm(
    phones: Mapping[str, str],
    *,
    config: str = "",
    gate: Path | str = "",
    plugged: bool = True,
    isolation: str = "",
    places: Mapping[str, str] | None = None,
    physics_speed: float | None = None,
    bundles: Path | None = None,
    opencl: Path | None = None,
    report: Callable[[str], None] = _ignore,
) -> Iterator[VirtualFarm]:
    """A daemon with virtual phones, plugged in and on their way to ready.

    Args:
        phones: name in the lab -> profile, or profile+arm64 or profile+opencl (`phones_of`).
        config: further TOML for the daemon.
        gate: `[tvm] gate`: the socket of a running `farm gate`; "": a gate that the daemon starts.
        plugged: whether the phones are plugged in at once.
        isolation: full, user or none (docs/virtual-phone.md); empty: the best this host allows.
        places: name in the lab -> USB place, as in `1-4.2`. The daemon finds them in the lab's sysfs and switches their
            ports by the lab's uhubctl, unless `config` has a `[power]` of its own.
        physics_speed: heat, throttling and battery follow the load, that many times as fast; None: they stand still.
        bundles: a bundle library's `objects` of an earlier farm: what is in it needs no golden kernels compiled.
        opencl: TVM's OpenCL runtime (farm.runtime.build) for the phones; None: farm's own where one has +opencl.
        report: hears what is being done, a line at a time.
    """
    from farm.adb.program import find_adb
    from farm.simulation.control import running_lab
    from farm.simulation.runtime import is_launcher

    _check_isolation(isolation)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="farm-")))
        bundle, arm64, driver = _build(folder, phones, bundles, opencl, report)
        daemon = DaemonProcess(folder, config + (_on_hubs(folder / "lab", config) if places else ""), gate=gate)
        client = stack.enter_context(_running(daemon, bundle, arm64, report))
        report(f"booting {many(len(phones), 'virtual phone')} ...")
        lab = running_lab(
            folder / "lab",
            phones,
            adb_socket=client.call("status")["adb"]["socket"],
            isolation=isolation or None,
            expose_python=is_launcher(bundle / "tvm_rpc"),
            arm64=arm64,
            opencl=driver,
            plugged=plugged,
            places=places,
            owns_adb=True,
        )
        farm = VirtualFarm(daemon, client, stack.enter_context(lab), find_adb().path)
        if physics_speed is not None:
            farm.lab.fault("*", "physics", speed=physics_speed)
        stack.callback(daemon.stop)  # before the lab: a daemon whose phones all vanish would blame the hardware
        yield farm


def _check_isolation(isolation: str) -> None:
    from farm.simulation.namespaces import Isolation

    if isolation and isolation not in set(Isolation):
        raise UserError(f"there is no isolation {isolation!r}", hint=f"use {', '.join(Isolation)}")


def _build(
    folder: Path, phones: Mapping[str, str], bundles: Path | None, opencl: Path | None, report: Callable[[str], None]
) -> tuple[Path, Path | None, Path | None]:
    """The phones' runtime bundle; and what arm64 phones and those with OpenCL need, if there are any."""
    from farm.simulation.arm64 import arm64_folder
    from farm.simulation.opencl import opencl_folder, opencl_runtime
    from farm.simulation.profiles import choose
    from farm.simulation.runtime import build_bundle_folder

    report("building the virtual phones' runtime bundle (where there is g++, it compiles tvm_rpc.cc once) ...")
    bundle = build_bundle_folder(folder / "bundle")
    if bundles is not None:
        shutil.copytree(bundles, folder / "state" / "bundles" / "objects")
    choices = [choose(profile) for profile in phones.values()]
    arm64 = arm64_folder(report) if any(choice.arm64 for choice in choices) else None
    driver = opencl_folder(report) if any(choice.opencl for choice in choices) else None
    if opencl is not None or driver is not None:
        library = opencl or opencl_runtime(report)
        shutil.copyfile(library, bundle / library.name)
    return bundle, arm64, driver


@contextlib.contextmanager
def _running(
    daemon: DaemonProcess, bundle: Path, arm64: Path | None, report: Callable[[str], None]
) -> Iterator[ControlClient]:
    """Start the daemon with the bundles; stop it in the end."""
    report("starting the daemon ...")
    try:
        with contextlib.closing(daemon.start()) as client:
            report("checking the bundle and compiling its golden kernels ...")
            client.call("bundle.add", folder=str(bundle), name="virtual")
            if arm64 is not None:
                client.call("bundle.add", folder=str(arm64 / "bundle"), name="virtual-arm64")
            yield client
    finally:
        daemon.stop()
