"""`farm demo`: the farm's main job on virtual phones, shown step by step with the very commands a person would type."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from farm.cli.context import say
from farm.cli.status import print_status
from farm.core.errors import HostError

if TYPE_CHECKING:
    from farm.cli.virtual_farm import VirtualFarm

PHONES = ("oneplus-12", "galaxy-note20", "realme-gt-neo3", "oneplus-12")  # three makes; the twins are tuned on together
PROFILES = "galaxy-a55, galaxy-note20, galaxy-s9, huawei-mate-20, oneplus-12, oneplus-5t, realme-gt-neo3"
NETWORK = "small_cnn"
TUNED = "one_conv"  # one operator: a few trials show what tuning is for
TRIALS = 16


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo")(demo)


def demo(
    stay: Annotated[bool, typer.Option("--stay", help="Keep it up until Ctrl-C, for your own commands.")] = False,
    phones: Annotated[str, typer.Option(help=f"Virtual phones, comma-separated: {PROFILES}.")] = ",".join(PHONES),
    repeat: Annotated[int, typer.Option(min=2, help="Timed samples per phone.")] = 40,
    trials: Annotated[int, typer.Option(min=0, help="Candidates of the tuning; 0: none, as with --arm64.")] = TRIALS,
    isolation: Annotated[str, typer.Option(help="full, user or none; default: the best this host allows.")] = "",
    physics: Annotated[
        bool, typer.Option("--physics", help="Phones warm up with load and slow down when hot, ten times as fast.")
    ] = False,
    arm64: Annotated[bool, typer.Option("--arm64", help="Phones that run AArch64 code, under qemu.")] = False,
) -> None:
    """Run the farm's main job on virtual phones: find, identify, provision, compile, run, check, time, tune."""
    from farm.cli.virtual_farm import phones_of, virtual_farm

    for signum in (signal.SIGTERM, signal.SIGHUP):  # a closed terminal ends it like Ctrl-C
        signal.signal(signum, lambda number, _frame: sys.exit(128 + number))
    started = time.monotonic()
    lab = phones_of(profile + "+arm64" * arm64 for profile in phones.split(","))
    with virtual_farm(lab, isolation=isolation, physics_speed=10.0 if physics else None, tell=say) as farm:
        farm.wait_ready(len(lab), tell=say)
        host, port = farm.tracker()
        _show("adb devices -l", farm.adb("devices", "-l"))
        query = ["-m", "tvm.exec.query_rpc_tracker", "--host", host, "--port", str(port)]
        _show("python -m tvm.exec.query_rpc_tracker   # the stock client, unchanged", farm.run(sys.executable, *query))
        typer.echo("\n$ farm status")
        print_status(farm.status())
        model = _network(farm, NETWORK)
        _typed(farm, "bench", model, "--on", "android", "--repeat", str(repeat))
        typer.echo(f"\n{len(lab)} phones, one model, numbers checked, in {time.monotonic() - started:.0f} s.")
        if trials and not arm64:  # under qemu it would take minutes
            on, devices = _twins(farm)
            options = ("--on", on, "--devices", str(devices), "--trials", str(trials), "--cost-model", "random")
            _typed(farm, "tune", _network(farm, TUNED), *options)
        typer.echo(f"\nAll of it in {time.monotonic() - started:.0f} s.")
        if stay:
            adb_socket = farm.status()["adb"]["socket"]
            typer.echo("\nIt stays up until Ctrl-C. In another shell:")
            typer.echo(f"  export FARM_SOCKET={farm.socket}   # farm status, farm bench, ...")
            typer.echo(f"  export ADB_SERVER_SOCKET={adb_socket}   # adb devices, adb shell, ...")
            typer.echo(f'  tvm.rpc.connect_tracker("{host}", {port})')
            with contextlib.suppress(KeyboardInterrupt):
                while True:
                    time.sleep(3600)


def _show(command: str, done: subprocess.CompletedProcess[str]) -> None:
    typer.echo(f"\n$ {command}\n{done.stdout.strip()}")
    if done.returncode:
        raise HostError(f"`{command}` ended with {done.returncode}", evidence=done.stderr)


def _network(farm: VirtualFarm, name: str) -> Path:
    """A network of the zoo, written to a file."""
    model = farm.folder / f"{name}.onnx"
    made = farm.run(sys.executable, "-m", "farm", "model", "make", name, "-o", str(model))
    _show(f"farm model make {name} -o {model.name}", made)
    return model


def _twins(farm: VirtualFarm) -> tuple[str, int]:
    """The SoC that most phones have, as `--on` takes it, and how many: identical ones are tuned on together."""
    [(soc, count)] = Counter(device["soc"] for device in farm.status()["devices"]).most_common(1)
    return f"soc={soc.lower()}", count


def _typed(farm: VirtualFarm, verb: str, model: Path, *options: str) -> None:
    """The very command that people type, in sight."""
    typer.echo(f"\n$ farm {verb} {model.name} {' '.join(options)}")
    command = [sys.executable, "-m", "farm", "--socket", str(farm.socket), verb, str(model), *options]
    sys.stdout.flush()
    if subprocess.run(command, check=False).returncode:
        raise HostError(f"`farm {verb}` failed on the virtual phones", hint="see the lines above")
