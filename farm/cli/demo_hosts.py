"""`farm demo --hosts N`: a lab of several hosts; it kills one of them while a tuning runs on the phones of all."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import typer

from farm.cli.demo_report import DemoProgress
from farm.cli.output import print_note
from farm.common.durations import many
from farm.common.errors import HostError

if TYPE_CHECKING:
    from farm.simulation.virtual_farm import VirtualFarm
    from farm.simulation.virtual_hosts import VirtualHosts

PHONE = "oneplus-12"  # one model, so that a tuning may use the phones of all hosts
NETWORK = "one_conv"
TRIALS_OF_A_PHONE = 16  # at least: a host shall be lost before they are done
LISTEN = 'listen = "tcp://127.0.0.1:0"\n'  # of each host, for the others
WATCH_LIMIT_S = 300.0  # for the tuning
ENDS = frozenset({"job.done", "job.failed", "job.cancelled"})


def run(hosts: int, profiles: list[str], *, trials: int, isolation: str, stay: bool) -> None:
    """Start the lab, show it, and kill one of its hosts.

    Raises:
        HostError: PostgreSQL is missing, a part did not come up, or a command failed.
    """
    from farm.simulation.virtual_farm import phones_of
    from farm.simulation.virtual_hosts import virtual_hosts

    started = time.monotonic()
    phones = phones_of(profiles)
    names = [f"lab{number}" for number in range(1, hosts + 1)]  # a phone's name makes its serial number
    lab_of = {host: {f"{name}-{host}": profile for name, profile in phones.items()} for host in names}
    progress = DemoProgress()
    with (
        progress.watched(),
        virtual_hosts(lab_of, config=LISTEN, isolation=isolation, report=progress.note) as lab,
    ):
        if stay:
            _say_addresses(lab)
        lab.wait_ready(progress.show)
        progress.wait_for("")
        first = lab.farms["lab1"]
        _typed(first, "host", "list")
        _typed(first, "status")
        host, port = first.tracker()
        query = ["-P", "-m", "tvm.exec.query_rpc_tracker", "--host", host, "--port", str(port)]
        _run("python -m tvm.exec.query_rpc_tracker   # the stock client at lab1: phones of all hosts", query)
        if trials:
            if trials < (fewest := TRIALS_OF_A_PHONE * hosts):
                typer.echo(f"\n{many(trials, 'trial')} would end before a host is killed: {fewest} are made.")
            _tune_and_kill(lab, max(trials, fewest), hosts * len(phones))
        typer.echo(f"\nAll of it in {time.monotonic() - started:.0f} s.")
        if stay:
            _stay(lab)


@dataclass
class Story:
    """The progress of the demo by the lab's events, while a host is killed under a tuning. No I/O."""

    doomed: str  # the host to be killed
    job: str  # the tuning
    lost: str = ""  # the head's reason to take the host for lost
    ended: bool = False  # whether the tuning has ended
    devices: set[str] = field(default_factory=set)  # phones that the tuning has had

    def take(self, event: Mapping[str, Any]) -> None:
        """Take the next event."""
        kind, subject, data = event["kind"], event["subject"], event["data"]
        if kind == "lease.granted" and data.get("job") == self.job:
            self.devices.add(data["device"])
        elif kind == "host.lost" and subject == self.doomed:
            self.lost = data["reason"]
        elif kind in ENDS and subject == self.job:
            self.ended = True

    @property
    def over(self) -> bool:
        """Whether the tuning has ended, and the head has missed the host."""
        return bool(self.lost) and self.ended


def _tune_and_kill(lab: VirtualHosts, trials: int, phones: int) -> None:
    """Tune on all phones of the lab at once; kill the last host in the middle of it.

    Raises:
        HostError: the tuning did not end well.
    """
    first, (name, doomed) = lab.farms["lab1"], list(lab.farms.items())[-1]
    model = first.folder / f"{NETWORK}.onnx"
    _run(f"farm model make {NETWORK} -o {model.name}", ["-P", "-m", "farm", "model", "make", NETWORK, "-o", str(model)])
    since = first.status()["seq"]
    options = ("--on", "android", "--devices", str(phones), "--trials", str(trials), "--cost-model", "random")
    job = _submitted(first, model, (*options, "--detach"))
    _watch(first, since, Story(name, job), doomed, phones)
    _typed(first, "job", "show", job)
    _typed(first, "host", "list")
    shown = first.client.call("job.show", job=job)
    if shown["job"]["state"] != "done":
        raise HostError("the tuning did not survive the loss of a host", hint="see the lines above")
    typer.echo(f"\nThe tuning has ended, once, with {shown['result']['trials']} of {trials} trials.")


def _submitted(farm: VirtualFarm, model: Path, options: Sequence[str]) -> str:
    """Run and show the command of a tuning; returns its job."""
    done = farm.farm("tune", str(model), *options)
    typer.echo(f"\n$ farm tune {model.name} {' '.join(options)}\n{done.stdout.strip()}")
    if done.returncode:
        raise HostError("`farm tune` failed", evidence=done.stderr)
    return done.stdout.split()[0]


def _watch(first: VirtualFarm, since: int, story: Story, doomed: VirtualFarm, phones: int) -> None:
    """Kill the host when the tuning has all phones; return when it has ended and the head has missed the host."""
    killed = said = False
    try:
        for event in first.events(since, timeout_s=WATCH_LIMIT_S):
            before = len(story.devices)
            story.take(event)
            if len(story.devices) > before:
                print_note(f"  it has {event['data']['device']}")
            if len(story.devices) >= phones and not killed:
                killed = True
                print_note(f"  it has phones of every host; now kill -9 of the daemon of {story.doomed} ...")
                doomed.daemon.kill()
            if story.lost and not said:
                said = True
                print_note(f"  {story.doomed} is lost ({story.lost}): the tuning continues without it ...")
            if story.over:
                return
    except TimeoutError as error:
        raise HostError("the tuning has not ended", evidence=str(error)) from error


def _typed(farm: VirtualFarm, *words: str) -> None:
    """Run a command of farm, and show it as people type it."""
    _run(f"farm {' '.join(words)}", ["-P", "-m", "farm", "--socket", str(farm.socket), *words])


def _run(shown: str, arguments: list[str]) -> None:
    typer.echo(f"\n$ {shown}")
    sys.stdout.flush()
    if code := subprocess.run([sys.executable, *arguments], check=False).returncode:
        raise HostError(f"`{shown.partition('   #')[0]}` ended with {code}", hint="see the lines above")


def _say_addresses(lab: VirtualHosts) -> None:
    """Print the way to each host for other shells: before the phones are ready, which takes its time."""
    typer.echo("\nIt stays up until Ctrl-C, and these addresses go with it. In another shell, one of:")
    for name, farm in lab.farms.items():
        host, port = farm.tracker()
        farm.daemon.keep_ports(port, web_port=urlsplit(farm.status()["web"]).port or 0)
        reached = f"FARM_SOCKET={farm.socket} FARM_CONFIG={farm.daemon.config}"
        typer.echo(f"  export {reached} TVM_TRACKER_HOST={host} TVM_TRACKER_PORT={port}   # {name}")
    typer.echo(f"  psql '{lab.url}'   # the lab's database\n")


def _stay(lab: VirtualHosts) -> None:
    """Keep the lab until Ctrl-C, with the host that was killed."""
    for name, farm in lab.farms.items():
        if not farm.daemon.runs:
            print_note(f"starting {name} again ...")
            farm.daemon.start().close()
    typer.echo("\nIt stays up until Ctrl-C, at the addresses above.")
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            time.sleep(3600)
