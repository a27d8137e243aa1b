"""`farm demo --hosts N`: a lab of several hosts; one of them is killed while tunings run on the phones of all."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from farm.cli.output import print_note
from farm.common.errors import HostError

if TYPE_CHECKING:
    from farm.simulation.virtual_farm import VirtualFarm
    from farm.simulation.virtual_hosts import VirtualHosts

PHONE = "oneplus-12"  # one model, so that a tuning may use the phones of all hosts
NETWORK = "one_conv"
LISTEN = 'listen = "tcp://127.0.0.1:0"\n'  # of each host, for the others
WATCH_LIMIT_S = 300.0  # for the tunings
ENDS = frozenset({"job.done", "job.failed", "job.cancelled"})

StepPrinter = Callable[[Mapping[str, Any]], None]


def run(hosts: int, profiles: list[str], *, trials: int, isolation: str, stay: bool, show_step: StepPrinter) -> None:
    """Start the lab, show it, and kill one of its hosts.

    Raises:
        HostError: PostgreSQL is missing, a part did not come up, or a command failed.
    """
    from farm.simulation.virtual_farm import phones_of
    from farm.simulation.virtual_hosts import virtual_hosts

    started = time.monotonic()
    phones = phones_of(profiles)
    lab_of = {f"lab{number}": phones for number in range(1, hosts + 1)}
    with virtual_hosts(lab_of, config=LISTEN, isolation=isolation, report=print_note) as lab:
        lab.wait_ready(show_step)
        first = lab.farms["lab1"]
        _typed(first, "host", "list")
        _typed(first, "status")
        host, port = first.tracker()
        query = ["-m", "tvm.exec.query_rpc_tracker", "--host", host, "--port", str(port)]
        _run("python -m tvm.exec.query_rpc_tracker   # the stock client at lab1: phones of all hosts", query)
        if trials:
            _tune_and_kill(lab, trials, hosts * len(phones))
        typer.echo(f"\nAll of it in {time.monotonic() - started:.0f} s.")
        if stay:
            _stay(lab)


@dataclass
class Story:
    """What the events of the lab say while a host is killed under its jobs. No I/O."""

    doomed: str  # the host to be killed
    jobs: frozenset[str]
    moved: str = ""  # the job that ran on the host when it was killed
    lost: str = ""  # why the head holds the host for lost
    runs_on: dict[str, str] = field(default_factory=dict)  # job -> phone
    _ended: set[str] = field(default_factory=set)

    def take(self, event: Mapping[str, Any]) -> None:
        """Take the next event."""
        kind, subject, data = event["kind"], event["subject"], event["data"]
        if kind == "attempt.started" and data["job"] in self.jobs:
            self.runs_on[data["job"]] = data["device"]
        elif kind == "host.lost" and subject == self.doomed:
            self.lost = data["reason"]
        elif kind in ENDS and subject in self.jobs:
            self._ended.add(subject)

    @property
    def all_run(self) -> bool:
        """Whether every job has begun."""
        return len(self.runs_on) == len(self.jobs)

    @property
    def over(self) -> bool:
        """Whether every job has ended, and the head has missed the host."""
        return bool(self.lost) and self._ended == self.jobs


def _tune_and_kill(lab: VirtualHosts, trials: int, phones: int) -> None:
    """Run a tuning on each phone of the lab; kill the last host in the middle of its own.

    Raises:
        HostError: a tuning did not end well.
    """
    first, (name, doomed) = lab.farms["lab1"], list(lab.farms.items())[-1]
    model = first.folder / f"{NETWORK}.onnx"
    _run(f"farm model make {NETWORK} -o {model.name}", ["-m", "farm", "model", "make", NETWORK, "-o", str(model)])
    since = first.status()["seq"]
    options = ("--on", "android", "--trials", str(trials), "--cost-model", "random", "--detach")
    jobs = [_submitted(first, model, options) for _ in range(phones)]
    story = _watch(first, since, Story(name, frozenset(jobs)), doomed)
    _typed(first, "job", "list")
    _typed(first, "job", "show", story.moved)
    _typed(first, "host", "list")
    outcomes = [first.client.call("job.show", job=job) for job in jobs]
    done = [each["result"]["trials"] for each in outcomes if each["job"]["state"] == "done"]
    if len(done) < len(jobs):
        raise HostError("a tuning did not survive the loss of its host", hint="see the lines above")
    typer.echo(f"\n{len(done)} tunings have ended, each once, with {' + '.join(map(str, done))} trials.")


def _submitted(farm: VirtualFarm, model: Path, options: Sequence[str]) -> str:
    """The job of a tuning, typed in sight."""
    done = farm.farm("tune", str(model), *options)
    typer.echo(f"\n$ farm tune {model.name} {' '.join(options)}\n{done.stdout.strip()}")
    if done.returncode:
        raise HostError("`farm tune` failed", evidence=done.stderr)
    return done.stdout.split()[0]


def _watch(first: VirtualFarm, since: int, story: Story, doomed: VirtualFarm) -> Story:
    """Kill the host when all jobs run; return when they have ended and the head has missed it."""
    of_doomed = doomed.names()
    said = False
    try:
        for event in first.events(since, timeout_s=WATCH_LIMIT_S):
            story.take(event)
            if event["kind"] == "attempt.started":
                print_note(f"  {event['data']['job']} runs on {event['data']['device']}")
            if story.all_run and not story.moved:
                story.moved = next(job for job, device in story.runs_on.items() if device in of_doomed)
                print_note(f"  every phone is in use; now kill -9 of the daemon of {story.doomed} ...")
                doomed.daemon.kill()
            if story.lost and not said:
                said = True
                print_note(f"  {story.doomed} is lost ({story.lost}): {story.moved} is tried again on another host ...")
            if story.over:
                break
    except TimeoutError as error:
        raise HostError("the tunings have not ended", evidence=str(error)) from error
    return story


def _typed(farm: VirtualFarm, *words: str) -> None:
    """The very command that people type, in sight."""
    _run(f"farm {' '.join(words)}", ["-m", "farm", "--socket", str(farm.socket), *words])


def _run(shown: str, arguments: list[str]) -> None:
    typer.echo(f"\n$ {shown}")
    sys.stdout.flush()
    if code := subprocess.run([sys.executable, *arguments], check=False).returncode:
        raise HostError(f"`{shown.partition('   #')[0]}` ended with {code}", hint="see the lines above")


def _stay(lab: VirtualHosts) -> None:
    """Keep the lab until Ctrl-C; print how other shells reach each host."""
    typer.echo("\nIt stays up until Ctrl-C. In another shell, one of:")
    for name, farm in lab.farms.items():
        if not farm.daemon.runs:
            print_note(f"starting {name} again ...")
            farm.daemon.start().close()
        host, port = farm.tracker()
        typer.echo(f"  export FARM_SOCKET={farm.socket} TVM_TRACKER_HOST={host} TVM_TRACKER_PORT={port}   # {name}")
    typer.echo(f"  psql '{lab.url}'   # the lab's database")
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            time.sleep(3600)
