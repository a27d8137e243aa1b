"""Fuzz one target, or all: `python -m tests.fuzz TARGET [--seconds 60] [--seed 1] [--corpus FOLDER]`.

With atheris installed (it is no requirement: `pip install atheris`) and `--atheris`, the target runs under libFuzzer;
what follows `--` is libFuzzer's. An input that breaks a target is written to `fuzz-TARGET-HASH` and named.
"""

import argparse
import hashlib
import sys
import time
from pathlib import Path
from random import Random

from tests.fuzz.mutate import mutated
from tests.fuzz.targets import TARGETS, Target


def main() -> int:
    """Exit code 1 when a target broke."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", choices=[*TARGETS, "all"])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--atheris", action="store_true", help="run under atheris, libFuzzer's options after --")
    parser.add_argument("rest", nargs="*")
    given = parser.parse_args()
    if given.atheris:
        return under_atheris(given.target, given.corpus, given.rest)
    names = list(TARGETS) if given.target == "all" else [given.target]
    return max(play(name, TARGETS[name], given.seconds / len(names), given.seed, given.corpus) for name in names)


def play(name: str, target: Target, seconds: float, seed: int, corpus: Path | None) -> int:
    """Mutate until the time is over."""
    random = Random(seed)
    kept = (
        [*target.seeds, *(path.read_bytes() for path in sorted(corpus.iterdir()) if corpus)]
        if corpus
        else [*target.seeds]
    )
    began, runs = time.monotonic(), 0
    while time.monotonic() - began < seconds:
        data = mutated(random.choice(kept), random, tuple(kept))
        try:
            target.run(data)
        except BaseException as error:  # noqa: BLE001 (whatever it is, it is what we look for)
            path = Path(f"fuzz-{name}-{hashlib.sha256(data).hexdigest()[:12]}")
            path.write_bytes(data)
            print(f"{name}: {type(error).__name__}: {error}; the input is {path}")
            return 1
        runs += 1
        if len(kept) < 2000 and random.random() < 0.05:  # a walk away from the seeds
            kept.append(data)
    print(f"{name}: {runs} inputs in {seconds:.0f} s, none broke it (seed {seed})")
    return 0


def under_atheris(name: str, corpus: Path | None, rest: list[str]) -> int:
    """Never returns when it works: libFuzzer ends the process."""
    try:
        import atheris
    except ImportError:
        print("atheris is not installed (pip install atheris); without --atheris it is not needed")
        return 2
    for path in [corpus] if corpus else []:
        path.mkdir(exist_ok=True)
        for number, seed in enumerate(TARGETS[name].seeds):
            (path / f"seed-{number}").write_bytes(seed)
    atheris.instrument_all()
    atheris.Setup([sys.argv[0], *rest, *([str(corpus)] if corpus else [])], TARGETS[name].run)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
