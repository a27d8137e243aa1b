"""`farm tune --on host`: no daemon, no phone; this machine's own CPU."""

from __future__ import annotations

import json as json_
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from farm.cli import terminal
from farm.cli.context import print_json, say
from farm.cli.interrupts import interruptible
from farm.cli.local import cache_folder, scratch_folder, with_tvm
from farm.cli.records import opened, write_curve
from farm.cli.tune import Live
from farm.cli.tune_summary import Typed, build_options, print_result
from farm.core.errors import ExitCode
from farm.core.selector import HOST


def tune_here(
    model: Path,
    chosen: Mapping[str, Any],
    options: Mapping[str, Any],
    prior: str | None,
    *,
    output: Path | None,
    plot: Path | None,
    json: bool,
) -> None:
    """Tune on this machine and print what came of it.

    Raises:
        FarmError: as a tune job.
    """
    live = Live(tty=terminal.lively(sys.stderr))
    with scratch_folder() as folder:
        scratch = Path(folder)
        request = {
            "model": str(model.resolve()),
            "target": HOST if options["target"] == "cpu" else options["target"],
            "precision": options["precision"],
            "shapes": options.get("shapes", {}),
            "dtypes": options.get("dtypes", {}),
            "cache": str(cache_folder()),
            "options": {**chosen, **({"search_s": options["timeout_s"]} if options["timeout_s"] else {})},
            "prior": _prior(prior, scratch),
            "records": None,
            "output": str(output.resolve()) if output is not None else None,
        }
        result = _carried_out(request, scratch, live, model.name, quiet=json)
    if plot is not None:
        write_curve(plot, result["curve"], result["trials"], f"{model.name}: estimated latency")
    if json:
        print_json({"ok": True, **result})
    else:
        print_result(result, Typed(model=str(model), on=HOST, options=build_options(options), output=output))


@dataclass(slots=True)
class Standing:
    """How far it is, in case that it is broken off."""

    folder: str = ""  # of its records
    trials: int = 0


def _carried_out(request: Mapping[str, Any], scratch: Path, live: Live, name: str, *, quiet: bool) -> dict[str, Any]:
    standing = Standing()
    try:
        with interruptible():
            return with_tvm(
                "tune",
                f"tuning {name}",
                request,
                scratch,
                module="farm.worker.tune_here",
                on_line=lambda line: _tell(line, live, standing, quiet=quiet),
                after_crash="the same command goes on where it was",
            )
    except KeyboardInterrupt:
        live.end()
        if standing.folder and standing.trials:
            say(f"{standing.trials} trials are kept in {standing.folder}: the same command goes on from them")
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    finally:
        live.end()


def _tell(line: str, live: Live, standing: Standing, *, quiet: bool) -> None:
    try:
        told = json_.loads(line)
    except ValueError:
        return  # something else that TVM printed
    if not isinstance(told, dict):
        return
    standing.folder = str(told.get("folder") or standing.folder)
    if isinstance(told.get("tuning"), dict):
        standing.trials = int(told["tuning"].get("trials", 0))
    if not quiet and ("step" in told or "log" in told):
        live.line(str(told.get("step") or told.get("log") or ""), told.get("tuning"))


def _prior(which: str | None, scratch: Path) -> str | None:
    if which is None:
        return None
    from farm.compiler.record_files import write_records

    _, found = opened(which)
    write_records(found.set, scratch / "prior.tar")
    return str(scratch / "prior.tar")
