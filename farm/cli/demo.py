"""`farm demo`: the farm's main job on virtual phones, shown step by step with the very commands a person would type."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from farm.cli import complete, work
from farm.cli.connection import connect
from farm.cli.demo_report import DemoProgress, summary_lines
from farm.cli.output import print_line, print_note, print_table
from farm.cli.status import status_lines
from farm.common.errors import HostError, UserError

if TYPE_CHECKING:
    from tenacity import RetryCallState

    from farm.simulation.virtual_farm import VirtualFarm

# three models; the two identical phones share a tuning
PHONES = ("oneplus-12", "galaxy-note20", "realme-gt-neo3", "oneplus-12")
PROFILES = "galaxy-a55, galaxy-note20, galaxy-s9, huawei-mate-20, oneplus-12, oneplus-5t, realme-gt-neo3"
NETWORK = "small_cnn"
TUNED = "one_conv"  # one operator: a few trials show what tuning is for
TRIALS = 16
REPEAT = 40
# Runs in a sample of the bench, 0.1 ms each: the host takes 4 ms (a scheduler's slice) from some samples. In samples of
# 100 ms that is too little to show as a second level, for which a result is rejected.
RUNS = 1000
SECOND_S = "5"  # of timing the second runtime
STARTS = 5  # of a daemon that has ended, in a row, before the demo gives up
FIRST_PAUSE_S = 0.5  # between two of them, then twice that, ...
ENDED_BY = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # a closed terminal ends it like Ctrl-C

app = typer.Typer(
    help="""Run the farm's main job on virtual phones; `fault` breaks one of them.

    Its database, jobs and results are in a new folder farm-* below $TMPDIR or /tmp, which goes when the demo ends;
    after kill -9 it is left, and yours to delete. Compiled RPC servers stay in ~/.cache/farm ($XDG_CACHE_HOME/farm).
    No farm of this host is touched.""",
)


@app.callback(invoke_without_command=True)
def demo(
    context: typer.Context,
    stay: Annotated[
        bool, typer.Option("--stay", help="Keep the farm running until Ctrl-C, for your own commands.")
    ] = False,
    phones: Annotated[
        str, typer.Option(help=f"Virtual phones, or those of each host: {PROFILES}.", autocompletion=complete.profiles)
    ] = "",
    hosts: Annotated[
        int, typer.Option(min=1, max=9, help="So many hosts over a PostgreSQL of their own; one of them is killed.")
    ] = 1,
    repeat: Annotated[int | None, typer.Option(min=2, help=f"Timed samples per phone; {REPEAT} by default.")] = None,
    trials: Annotated[int, typer.Option(min=0, help="Candidates of the tuning; 0: none, as with +arm64.")] = TRIALS,
    isolation: Annotated[
        str, typer.Option(help="How phones are kept apart: full, user, none; default: the best this host allows.")
    ] = "",
    physics: Annotated[
        bool, typer.Option("--physics", help="Phones warm up with load and slow down when hot, ten times as fast.")
    ] = False,
    why: work.Why = False,
    arm64: Annotated[bool, typer.Option("--arm64", help="Phones that run AArch64 code, under qemu.")] = False,
) -> None:
    """Run the farm's main job on virtual phones: find, identify, provision, compile, run, check, time, tune."""
    if context.invoked_subcommand is not None:
        return
    emulated = {"--arm64": arm64, "+arm64": "+arm64" in phones}
    for_one_host = emulated | {"--physics": physics, "--why": why, "--repeat": repeat}
    alone = [name for name, given in for_one_host.items() if given]
    if hosts > 1 and alone:
        raise UserError(
            f"{alone[0]} does not go with --hosts", hint=f"leave out {', '.join(alone)}; or leave out --hosts"
        )
    for signum in ENDED_BY:
        signal.signal(signum, _end)
    if hosts > 1:
        from farm.cli.demo_hosts import PHONE, run

        profiles = (phones or PHONE).split(",")
        run(hosts, profiles, trials=trials, isolation=isolation, stay=stay)
        return
    _one_host(
        (phones or ",".join(PHONES)).split(","), stay=stay, repeat=repeat or REPEAT, trials=trials, isolation=isolation,
        physics=physics, why=why, arm64=arm64,
    )  # fmt: skip


def _end(number: int, _frame: object) -> None:
    """The first signal ends the demo; another would cut short what stops its processes and deletes its folders."""
    for signum in ENDED_BY:
        signal.signal(signum, lambda *_: None)
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(128 + number)


def _one_host(
    profiles: Sequence[str], *, stay: bool, repeat: int, trials: int, isolation: str, physics: bool, why: bool,
    arm64: bool,
) -> None:  # fmt: skip
    from farm import Client
    from farm.simulation.profiles import choose
    from farm.simulation.virtual_farm import phones_of, virtual_farm

    started = time.monotonic()
    lab = phones_of(profile + "+arm64" * arm64 for profile in profiles)
    emulated = any(choose(profile).arm64 for profile in lab.values())
    places = {name: f"1-4.{port}" for port, name in enumerate(lab, 1)}  # so that their power can be cut
    speed = 10.0 if physics else None
    progress = DemoProgress()
    with (
        progress.watched(),
        virtual_farm(lab, isolation=isolation, places=places, physics_speed=speed, report=progress.note) as farm,
    ):
        if stay:
            _say_addresses(farm)
        farm.wait_ready(len(lab), progress.show)
        progress.wait_for("")
        host, port = farm.tracker()
        _show("adb devices -l", farm.adb("devices", "-l"))
        query = ["-P", "-m", "tvm.exec.query_rpc_tracker", "--host", host, "--port", str(port)]
        _show("python -m tvm.exec.query_rpc_tracker   # the stock client, unchanged", farm.run(sys.executable, *query))
        typer.echo("\n$ farm status")
        for line in status_lines(farm.status()):
            print_line(line)
        # All phones hang on one hub and all are this host: --quiet-hub times them one after the other.
        runs = () if emulated else ("--number", str(RUNS))  # under qemu a sample of as many would take seconds
        how = ("--quiet-hub", "--repeat", str(repeat), *runs, *["--why"] * why)
        network = _network(farm, NETWORK)
        _typed(farm, progress, "bench", network, "--on", "android", *how)
        if not emulated:  # the runtime's library is for this host's machine
            _second_runtime(farm, progress, network)
        if trials and not emulated:  # under qemu it would take minutes
            on, devices = _twins(farm)
            options = ("--on", on, "--devices", str(devices), "--trials", str(trials), "--cost-model", "random")
            _typed(farm, progress, "tune", _network(farm, TUNED), *options)
        with Client(farm.socket) as client:
            own = [each.id for each in reversed(client.jobs()) if each.name in (network.name, f"{TUNED}.onnx")]
            outcomes = [client.job(each, fetch_outputs=False) for each in own]
        typer.echo()
        for line in summary_lines(farm.status()["devices"], outcomes, time.monotonic() - started, stays=stay):
            print_line(line)
        if stay:
            _stay(farm)


def _second_runtime(farm: VirtualFarm, progress: DemoProgress, network: Path) -> None:
    """The network on one phone under ONNX Runtime beside TVM, where its package is installed."""
    from farm.runtime.server import PACKAGES, packaged_library

    package = PACKAGES["ort"]
    if packaged_library(package) is None:
        print_note(f"with `pip install {package.project}` beside farm, the demo times the model under that runtime too")
        return
    phone, folder = farm.status()["devices"][0]["name"], farm.folder / "ort"
    progress.wait_for("compiling a runner for ONNX Runtime")
    made = farm.run(sys.executable, "-P", "-m", "farm", "program", "make", "ort", str(folder))
    _show(f"farm program make ort {folder.name}", made)
    options = ("--on", f"name={phone}", "--runtime-b", str(folder / "ort_runner.toml"), "--measure", SECOND_S)
    _typed(farm, progress, "compare", network, *options)
    status = farm.status()
    with contextlib.suppress(TimeoutError):  # the phone is cleaned after a program
        while any(row["state"] != "ready" for row in status["devices"]):
            next(farm.events(status["seq"]))
            status = farm.status()


@app.command()
def fault(
    phone: Annotated[
        str, typer.Argument(help="A virtual phone, as farm or the lab calls it.", autocompletion=complete.devices)
    ] = "",
    name: Annotated[str, typer.Argument(help="The fault.", autocompletion=complete.faults)] = "",
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[ARG=VALUE]...", help="Its arguments.")] = None,
) -> None:
    """Break a phone of the `farm demo --stay` that FARM_SOCKET names, or repair it; without a name: list the faults."""
    from farm.simulation.faults import FAULTS, parse_fault

    if not name:
        print_table(
            ("FAULT", "ARGUMENTS", "WHAT"),
            ((key, " ".join(f"{each}=" for each in one.arguments), one.meaning) for key, one in FAULTS.items()),
            below="WHAT",
        )
        return
    given = dict(_argument(each) for each in arguments or ())
    filled = parse_fault(name, given)  # raises for a mistake before the daemon is asked
    from farm.simulation.control import LabClient

    with connect() as client:
        devices = client.call("device.list")["devices"]
        folder = client.path.parent.parent / "lab"
    if not folder.is_dir():
        raise UserError(
            "this farm has no virtual phones",
            hint="in another shell: farm demo --stay; then set FARM_SOCKET as it says",
        )
    with LabClient(folder) as lab:
        known = {status.serial: nickname for nickname, status in lab.status().items()}
        names = {row["name"]: known[row["serial"]] for row in devices if row["serial"] in known}
        if phone not in names and phone not in known.values():
            raise UserError(f"no virtual phone {phone!r}", hint=f"there are: {', '.join([*names, *known.values()])}")
        lab.fault(names.get(phone, phone), name, **given)
    print_line(f"{phone}: {fault_words(name, filled)}")


def fault_words(name: str, arguments: Mapping[str, Any]) -> str:
    """A fault and its arguments as people type them."""
    return " ".join((name, *(f"{key}={value}" for key, value in arguments.items() if value is not None)))


def _argument(text: str) -> tuple[str, float | str | bool]:
    """ARG=VALUE; numbers, true and false have their own types."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UserError(f"{text!r} is no argument of a fault", hint="ARG=VALUE, as in free_bytes=50000000")
    if value in ("true", "false"):
        return key, value == "true"
    try:
        return key, float(value)
    except ValueError:
        return key, value


def _say_addresses(farm: VirtualFarm) -> None:
    """Print how other shells reach the farm: before its phones are ready, which takes its time."""
    status = farm.status()
    host, port = farm.tracker()
    farm.daemon.keep_ports(port, web_port=urlsplit(status["web"]).port or 0)
    typer.echo("\nIt stays up until Ctrl-C, and these addresses go with it. In another shell:")
    if status["web"]:
        typer.echo(f"  {status['web']}   # the web page; to sign in: farm auth new me --role operator --web")
    typer.echo(f"  export FARM_SOCKET={farm.socket} FARM_CONFIG={farm.daemon.config}   # farm status, farm bench, ...")
    typer.echo(f"  export TVM_TRACKER_HOST={host} TVM_TRACKER_PORT={port}   # tvm.rpc.connect_tracker")
    typer.echo(f"  export ADB_SERVER_SOCKET={status['adb']['socket']}   # adb devices, adb shell, ...\n")


def _stay(farm: VirtualFarm) -> None:
    """Keep the farm until Ctrl-C."""
    one = farm.status()["devices"][0]["name"]
    typer.echo("\nIt stays up until Ctrl-C, at the addresses above. In another shell, after the exports:")
    typer.echo(f"  farm demo fault {one} full_disk free_bytes=50000000   # break a phone; `farm demo fault` lists how")
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            print_note(f"the daemon has ended ({farm.daemon.wait()}); starting it again on the same ports ...")
            _start_again(farm)


def _start_again(farm: VirtualFarm) -> None:
    """Start the daemon, which may be killed again meanwhile.

    Raises:
        HostError: it did not come up, STARTS times in a row.
    """
    from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

    def note(state: RetryCallState) -> None:
        how = f"the daemon has ended while it was starting ({farm.daemon.wait()})"
        print_note(f"{how}; try {state.attempt_number + 1} of {STARTS} ...")

    failed = retry_if_exception_type(HostError)
    wait, stop = wait_exponential(FIRST_PAUSE_S), stop_after_attempt(STARTS)
    try:
        Retrying(retry=failed, wait=wait, stop=stop, before_sleep=note, reraise=True)(farm.daemon.start).close()
    except HostError as error:
        often = f"{error.message}, {STARTS} times in a row: the demo ends"
        raise HostError(often, hint=error.hint, evidence=error.evidence) from error


def _show(command: str, done: subprocess.CompletedProcess[str]) -> None:
    typer.echo(f"\n$ {command}\n{done.stdout.strip()}")
    if done.returncode:
        raise HostError(f"`{command}` ended with {done.returncode}", evidence=done.stderr)


def _network(farm: VirtualFarm, name: str) -> Path:
    """A network of the zoo, written to a file."""
    model = farm.folder / f"{name}.onnx"
    made = farm.run(sys.executable, "-P", "-m", "farm", "model", "make", name, "-o", str(model))
    _show(f"farm model make {name} -o {model.name}", made)
    return model


def _twins(farm: VirtualFarm) -> tuple[str, int]:
    """The SoC that most phones have, as `--on` takes it, and how many: identical ones are tuned on together."""
    [(soc, count)] = Counter(device["soc"] for device in farm.status()["devices"]).most_common(1)
    return f"soc={soc.lower()}", count


def _typed(farm: VirtualFarm, progress: DemoProgress, verb: str, model: Path, *options: str) -> None:
    """The very command that people type, in sight."""
    typer.echo(f"\n$ farm {verb} {model.name} {' '.join(options)}")
    command = [sys.executable, "-P", "-m", "farm", "--socket", str(farm.socket), verb, str(model), *options]
    if progress.run(command):
        raise HostError(f"`farm {verb}` failed on the virtual phones", hint="see the lines above")
