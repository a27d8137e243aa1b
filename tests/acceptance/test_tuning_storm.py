"""A tuning run through a seeded storm: it ends with the very number of trials that was asked for, and blames rightly.

The storm: servers on phones are killed, phones unplugged and plugged in again, the worker and the daemon are killed by
SIGKILL. Meanwhile one candidate in ten crashes and one in ten never ends and ignores SIGTERM (bad_candidates/).
STORM_SEED=N does a storm again.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from farm.client import Client
from farm.compiler.package import read_package
from farm.compiler.record_files import read_records
from farm.compiler.records import RECORDS
from farm.simulation.virtual_farm import VirtualFarm
from tests.support.tunable import dense_onnx
from tests.support.whole_farm import answer, holders, phones, running_farm, until, until_ready

TRIALS = 80
STORM = ("crash", "crash", "unplug", "unplug", "worker", "daemon")
CALM = 6  # trials between two faults: so no candidate is hit by two of them
BAD = Path(__file__).parent / "bad_candidates" / "sitecustomize.py"
LIBRARY = """
#include <signal.h>
#include <unistd.h>
int __tvm_ffi_main(void* self, const void* args, int count, void* result) { %s }
"""
BODIES = {
    "crash": "signal(SIGSEGV, SIG_DFL); return raise(SIGSEGV);",
    "endless": "signal(SIGTERM, SIG_IGN); for (;;) usleep(1000);",
}
ENDS = {"crash": "killed the process", "endless": "timeout"}  # what their records say


@pytest.fixture
def seed() -> int:
    seed = int(os.environ.get("STORM_SEED", "") or random.SystemRandom().randrange(10**6))
    print(f"STORM_SEED={seed}")
    return seed


@pytest.fixture
def bad(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the bad candidates; every farm from now on makes some."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler for candidates that misbehave")
    folder = tmp_path / "bad"
    folder.mkdir()
    (folder / "seed").write_text(str(seed))
    for kind, body in BODIES.items():
        command = [compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", str(folder / f"{kind}.so")]
        subprocess.run(command, input=LIBRARY % body, text=True, check=True)
    shutil.copy(BAD, folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), str(BAD.parents[3])]))
    return folder


class Storm:
    """What is done to a farm while one of its jobs tunes."""

    def __init__(self, farm: VirtualFarm, client: Client, job: str, dice: random.Random) -> None:
        self.farm, self.client, self.job, self.dice = farm, client, job, dice

    @property
    def folder(self) -> Path | None:
        """Of the run's records."""
        return next((self.farm.folder / "state").glob(f"**/tuning/*/{self.job}"), None)

    def trials(self) -> int:
        file = self.folder and self.folder / RECORDS
        return file.read_bytes().count(b"\n") if file and file.exists() else 0

    def calm(self) -> None:
        wanted = self.trials() + CALM
        until(lambda: self.trials() >= wanted or self.ended())
        assert wanted < TRIALS, "the storm came too late"

    def ended(self) -> bool:
        """Whether the job is done; it must not have failed."""
        outcome = self.client.job(self.job)
        assert outcome.error is None, (outcome.error, outcome.error.evidence)
        return outcome.job.ended

    def rage(self) -> None:
        for fault in self.dice.sample(STORM, len(STORM)):
            self.calm()
            phone = self.dice.choice(list(self.farm.lab.status()))
            print(f"{self.trials()} trials: {fault} {phone if fault in {'crash', 'unplug'} else ''}")
            getattr(self, fault)(phone)

    def crash(self, phone: str) -> None:
        self.farm.lab.server_crash(phone)

    def unplug(self, phone: str) -> None:
        self.farm.lab.unplug(phone)
        self.calm()  # the other one continues
        self.farm.lab.plug(phone)

    def worker(self, phone: str) -> None:
        for pid in holders(self.folder / "lock"):
            os.kill(pid, signal.SIGKILL)

    def daemon(self, phone: str) -> None:
        self.farm.daemon.kill()
        self.farm.daemon.start().close()


@pytest.mark.timeout(400)
def test_a_storm_costs_no_trial_and_no_healthy_candidate(seed: int, bad: Path, tmp_path: Path) -> None:
    model = tmp_path / "dense.onnx"
    model.write_bytes(dense_onnx(layers=2))
    with running_farm("oneplus-12", "oneplus-12") as farm, Client(farm.socket) as client:
        before = [kinds(phone.ours()) for phone in phones(farm)]
        spec = client.spec(
            "tune", model=model, on="android", devices=2, trials=TRIALS, cost_model="random", candidate_timeout_s=3,
            seed=seed,
        )  # fmt: skip
        submitted = client.submit(spec)
        storm = Storm(farm, client, submitted.ids[0], random.Random(seed))
        storm.rage()
        [outcome] = client.wait(submitted, timeout_s=300)
        package = tmp_path / "tuned.farm.tar"
        assert farm.farm("job", "output", storm.job, "-o", str(package)).returncode == 0
        assert read_package(package).tuned
        assert storm.folder is not None
        judged(outcome.raise_for_error().result, storm.folder, bad, answer(farm.farm("poison", "list", "--json")))
        until_ready(farm)
        for phone in phones(farm):
            phone.server()
        for phone, files in zip(phones(farm), before, strict=True):
            assert kinds(phone.ours()) == files
        assert list(farm.folder.glob("**/building/*")) == []


def kinds(files: list[str]) -> set[str]:
    """Paths on a phone without what differs from one server to the next."""
    return {re.sub(r"[0-9a-f]{8,}|\d+", "N", file) for file in files}


def judged(result: Any, folder: Path, bad: Path, poison: Any) -> None:
    """Every trial is there once, each of the bad ones has failed as it must, and nobody else was blamed."""
    found = read_records(folder)
    assert found.damage == ()
    assert result["trials"] == TRIALS == len(found.set.records) == len({each.key for each in found.set.records})
    assert result["speedup"]["confidence"] == 0.99
    assert (bad / "made").exists(), "no candidate was made bad: see bad_candidates/"
    made = dict(line.split() for line in (bad / "made").read_text().splitlines())
    ends: Counter[str] = Counter()
    for record in found.set.records:
        origin = found.set.origins[record.key]
        kind = next((kind for kind, said in ENDS.items() if said in origin.error), "good")
        assert (origin.error == "") == (kind == "good"), origin
        ends[kind] += 1
        assert kind != "good" or origin.device
    print(dict(ends), f"{len(made)} bad ones built")
    assert set(ends) == {*ENDS, "good"}
    blamed = {each["artifact"] for each in poison["poison"]}
    assert {made.get(artifact) for artifact in blamed} == {"crash"}
