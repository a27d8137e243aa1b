"""`farm demo`: the whole farm without a phone.

The same daemon as `farm serve`, a real adb server, and virtual phones instead of real ones. Everything lives in a temporary
folder, on loopback, on ports the kernel chose, and is gone when the command ends.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from farm.cli.bench import print_results
from farm.cli.context import say
from farm.cli.status import print_status
from farm.control.client import ControlClient
from farm.core.errors import HostError, UserError

PHONES = ("galaxy-s23", "galaxy-s20", "dimensity")  # three makes; `--phones` takes other profiles
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
    with virtual_farm(phones.split(",")) as farm:
        farm.show("adb devices -l", [farm.adb, "devices", "-l"])
        farm.show(
            "python -m tvm.exec.query_rpc_tracker      (the stock client, unchanged)",
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


def _bench(client: ControlClient, model: Path, repeat: int) -> list[dict[str, object]]:
    fields = {"model": client.put_artifact(model), "name": model.name, "selector": "android", "repeat": repeat}
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
    daemon: subprocess.Popen[bytes]
    adb: str
    adb_env: dict[str, str]
    host: str
    port: int

    def show(self, command: str, arguments: list[str]) -> None:
        """Run a real command and show it with what it printed."""
        typer.echo(f"\n$ {command}")
        done = subprocess.run(arguments, env=self.adb_env, capture_output=True, text=True, timeout=60, check=False)
        typer.echo(done.stdout.strip())
        if done.returncode:
            raise HostError(f"{arguments[0]} ended with {done.returncode}", evidence=done.stderr)


@contextlib.contextmanager
def virtual_farm(profiles: list[str], *, wait_ready: bool = True) -> Iterator[VirtualFarm]:
    """A daemon with one virtual phone per profile, all ready; everything is gone afterwards.

    Raises:
        UserError: TVM is missing, or a profile does not exist.
        HostError: the daemon or the phones did not come up in time.
    """
    from farm.adb.server import client_environment, find_binary
    from farm.simulation.control import VirtualLab
    from farm.simulation.profiles import profile_names
    from farm.simulation.runtime import build_bundle_folder

    unknown = sorted(set(profiles) - set(profile_names()))
    if unknown:
        raise UserError(f"there is no profile {unknown[0]}", hint=f"profiles: {', '.join(profile_names())}")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="farm-demo-")))
        say("building the virtual phones' runtime bundle (compiles tvm_rpc.cc once) ...")
        bundle = build_bundle_folder(folder / "bundle")
        say("starting the daemon ...")
        daemon, client = stack.enter_context(_daemon(folder))
        status = client.call("status")
        adb = str(find_binary(""))
        say("checking the bundle and compiling its golden kernels ...")
        client.call("bundle.add", folder=str(bundle), name="virtual", toolchain="default", timeout_s=120.0)
        say(f"plugging in {len(profiles)} virtual phones ...")
        stack.enter_context(VirtualLab(folder / "lab", status["adb"]["socket"], profiles))
        if wait_ready:
            _wait_ready(client, len(profiles))
        yield VirtualFarm(
            folder, client, daemon, adb, client_environment(status["adb"]["socket"]),
            status["tracker"]["host"], status["tracker"]["port"],
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


def _wait_ready(client: ControlClient, count: int) -> None:
    """Print what happens to the phones until `count` of them are ready."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    ready: set[str] = set()
    for event in client.stream("events", since=0, timeout_s=READY_TIMEOUT_S):
        if event["kind"].startswith("device."):
            reason = event["data"].get("reason") or ""
            say(f"  {event['subject']}: {event['kind'].removeprefix('device.')} {reason}".rstrip())
            (ready.add if event["kind"] == "device.ready" else ready.discard)(event["subject"])
        if len(ready) >= count:
            return
        if time.monotonic() > deadline:
            break
    raise HostError(f"only {len(ready)} of {count} phones became ready", hint="see the lines above")
