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


def main():
    """Exit code 1 when a target broke."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", help="a format, or all")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--atheris", action="store_true", help="run under atheris, libFuzzer's options after --")
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    given = parser.parse_args(sys.argv[1:end])
    if given.atheris:
        return under_atheris(given.target, given.corpus, sys.argv[end + 1 :])
    from tests.fuzz.targets import TARGETS

    if given.target not in (*TARGETS, "all"):
        parser.error(f"there is no target {given.target!r}: {', '.join(TARGETS)}, all")
    names = list(TARGETS) if given.target == "all" else [given.target]
    return max(play(name, TARGETS[name], given.seconds / len(names), given.seed, given.corpus) for name in names)


def play(name, target, seconds, seed, corpus):
    """Mutate until the time is over."""
    random = Random(seed)
    kept = [*target.seeds, *(path.read_bytes() for path in (sorted(corpus.iterdir()) if corpus else ()))]
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


def under_atheris(name, corpus, rest):
    """Never returns when it works: libFuzzer ends the process."""
    try:
        import atheris
    except ImportError:
        print("atheris is not installed (pip install atheris); without --atheris it is not needed")
        return 2
    with atheris.instrument_imports(include=["farm"]):  # what is imported before is not seen by libFuzzer
        from tests.fuzz.targets import TARGETS
    if name not in TARGETS:
        print(f"under atheris one target runs at a time: {', '.join(TARGETS)}")
        return 2
    if corpus is not None:
        corpus.mkdir(exist_ok=True)
        for number, seed in enumerate(TARGETS[name].seeds):
            (corpus / f"seed-{number}").write_bytes(seed)
    atheris.Setup([sys.argv[0], *rest, *([str(corpus)] if corpus else [])], TARGETS[name].run)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
