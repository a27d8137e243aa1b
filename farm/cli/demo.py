"""`farm demo`: the whole farm without a phone.

The same daemon as `farm serve`, a real adb server, and virtual phones instead of real ones. Everything lives in a
temporary folder, on loopback, on ports the kernel chose, and is gone when the command ends.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from farm.cli.bench import print_results
from farm.cli.context import say
from farm.cli.status import print_status
from farm.control.client import ControlClient
from farm.core.errors import HostError, UserError

if TYPE_CHECKING:
    from farm.simulation.control import LabClient

PHONES = ("oneplus-12", "galaxy-note20", "realme-gt-neo3")  # Adreno 7xx, Adreno 6xx, Mali; three makes
START_TIMEOUT_S = 60.0  # daemon up: a cold import of TVM in its zygote takes 10 s on a slow disk
READY_TIMEOUT_S = 120.0  # every phone identified, provisioned and checked, on two cores


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo")(demo)


def demo(
    stay: Annotated[bool, typer.Option("--stay", help="Keep it up until Ctrl-C, for your own commands.")] = False,
    phones: Annotated[str, typer.Option(help="Comma-separated profiles of the virtual phones.")] = ",".join(PHONES),
    repeat: Annotated[int, typer.Option(min=2, help="Timed samples per phone.")] = 20,
) -> None:
    """Run the farm's main job on virtual phones: find, identify, provision, compile, run, check, time."""
    started = time.monotonic()
    profiles = phones.split(",")
    with virtual_farm(profiles) as farm:
        farm.wait_ready(len(profiles))
        farm.show("adb devices -l", [farm.adb, "devices", "-l"])
        farm.show(
            "python -m tvm.exec.query_rpc_tracker   # the stock client, unchanged",
            [sys.executable, "-m", "tvm.exec.query_rpc_tracker", "--host", farm.host, "--port", str(farm.port)],
        )
        typer.echo("\n$ farm status")
        print_status(farm.client.call("status"))
        model = farm.folder / "small_cnn.onnx"
        farm.show(
            "python -m farm.worker.small_cnn small_cnn.onnx",
            [sys.executable, "-m", "farm.worker.small_cnn", str(model)],
        )
        typer.echo(f"\n$ farm bench small_cnn.onnx --on android --repeat {repeat}")
        results = _bench(farm.client, model, repeat)
        print_results(results)
        failed = [result["device"] for result in results if not result["ok"]]
        if failed:
            raise HostError(f"the demo's model failed on {', '.join(failed)}", hint="see the lines above")
        typer.echo(f"\n{len(results)} phones, one model, numbers checked, in {time.monotonic() - started:.0f} s.")
        if stay:
            typer.echo(
                f"\nIn another shell:  export FARM_SOCKET={farm.client.path}\nThen: farm status. Ctrl-C ends it."
            )
            with contextlib.suppress(KeyboardInterrupt):
                farm.daemon.wait()


def _bench(client: ControlClient, model: Path, repeat: int) -> list[dict[str, Any]]:
    fields: dict[str, Any] = {
        "model": client.put_artifact(model),
        "name": model.name,
        "selector": "android",
        "repeat": repeat,
    }
    for message in client.stream("bench", **fields, number=5, target="cpu"):
        if "results" in message:
            return list(message["results"])
        say(f"  {message['device']}: {message['step']}")
    raise HostError("the daemon ended the job without a result")


@dataclass(frozen=True, slots=True)
class VirtualFarm:
    """A running daemon with virtual phones."""

    folder: Path
    client: ControlClient
    lab: LabClient
    daemon: subprocess.Popen[bytes]
    adb: str
    adb_env: dict[str, str]
    host: str
    port: int

    def wait_ready(self, count: int) -> None:
        """Print what happens to the phones until `count` of them are ready.

        Raises:
            HostError: they did not become ready in time.
        """
        deadline = time.monotonic() + READY_TIMEOUT_S
        ready: set[str] = set()
        for event in self.client.stream("events", since=0):
            if event["kind"].startswith("device."):
                reason = event["data"].get("reason") or ""
                say(f"  {event['subject']}: {event['kind'].removeprefix('device.')} {reason}".rstrip())
                (ready.add if event["kind"] == "device.ready" else ready.discard)(event["subject"])
            if len(ready) >= count:
                return
            if time.monotonic() > deadline:
                break
        raise HostError(f"only {len(ready)} of {count} phones became ready", hint="see the lines above")

    def show(self, command: str, arguments: list[str]) -> None:
        """Run a real command and show it with what it printed."""
        typer.echo(f"\n$ {command}")
        done = subprocess.run(arguments, env=self.adb_env, capture_output=True, text=True, timeout=60, check=False)
        typer.echo(done.stdout.strip())
        if done.returncode:
            raise HostError(f"{arguments[0]} ended with {done.returncode}", evidence=done.stderr)


@contextlib.contextmanager
def virtual_farm(profiles: Sequence[str]) -> Iterator[VirtualFarm]:
    """A daemon with one virtual phone per profile, plugged in; everything is gone afterwards.

    Raises:
        UserError: TVM is missing, or a profile does not exist.
        HostError: the daemon or the phones did not come up in time.
    """
    from farm.adb.program import find_adb
    from farm.simulation.control import running_lab
    from farm.simulation.profiles import list_profiles
    from farm.simulation.runtime import build_bundle_folder, is_launcher

    unknown = sorted(set(profiles) - set(list_profiles()))
    if unknown:
        raise UserError(f"there is no profile {unknown[0]!r}", hint=f"profiles: {', '.join(list_profiles())}")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="farm-demo-")))
        say("building the virtual phones' runtime bundle (compiles tvm_rpc.cc once) ...")
        bundle = build_bundle_folder(folder / "bundle")
        say("starting the daemon ...")
        daemon, client = stack.enter_context(_daemon(folder))
        status = client.call("status")
        socket = status["adb"]["socket"]
        say("checking the bundle and compiling its golden kernels ...")
        client.call("bundle.add", folder=str(bundle), name="virtual")
        say(f"plugging in {len(profiles)} virtual phones ...")
        phones = {f"virtual-{number}": profile for number, profile in enumerate(profiles, 1)}
        lab = running_lab(folder / "lab", phones, adb_socket=socket, expose_python=is_launcher(bundle / "tvm_rpc"))
        yield VirtualFarm(
            folder, client, stack.enter_context(lab), daemon, str(find_adb().path),
            {**os.environ, "ADB_SERVER_SOCKET": socket}, status["tracker"]["host"], status["tracker"]["port"],
        )  # fmt: skip


@contextlib.contextmanager
def _daemon(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], ControlClient]]:
    runtime = folder / "run"
    config = folder / "farm.toml"
    config.write_text('[[adopt]]\nmatch = "virtual=yes"\npool = "demo"\n[tvm]\nport = 0\n[adb]\nusb = false\n')
    log = folder / "daemon.log"
    command = [sys.executable, "-m", "farm", "serve", "--config", str(config)]
    command += ["--state-dir", str(folder / "state"), "--runtime-dir", str(runtime)]
    with log.open("wb") as out:
        daemon = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
    try:
        with ControlClient(runtime / "control.sock") as client:
            client.wait_until_up(START_TIMEOUT_S, alive=lambda: daemon.poll() is None)
            yield daemon, client
    except HostError as error:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-5:])
        raise HostError(error.message, hint=error.hint, evidence=error.evidence or tail) from error
    finally:
        daemon.terminate()
        try:
            daemon.wait(timeout=15)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
