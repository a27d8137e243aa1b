"""`farm tune --on host`: `python -m farm.kinds.tune.tune_here REQUEST REPLY`, JSON lines of progress.

This machine is the phone: TVM's own RPC server, in a process of its own. Nothing needs a daemon.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from farm.common.errors import FarmError, error_to_wire
from farm.compiler.build import SMALL_BYTES, make_package
from farm.compiler.onnx_data import model_bytes
from farm.compiler.record_files import read_records
from farm.compiler.targets import check_here, host_target
from farm.devices.identity.targets import target_here
from farm.kinds.tune.run import TuningPlan, builds, compared, prepared, searched
from farm.tuning.phones import HostPhones
from farm.tuning.search import SearchOptions

JOB = "host"  # the name of its folder: the same command continues with a run that was broken off


class Printer:
    """Prints progress on stdout, a JSON object a line."""

    def progress(self, step: str, **facts: Any) -> None:
        """Print the step that the tuning is at."""
        self._print({"step": step, **facts})

    def log(self, text: str, level: str = "info") -> None:
        """Print a line of the log."""
        self._print({"log": text, "level": level})

    def folder(self, path: Path) -> None:
        """Print where the records are."""
        self._print({"folder": str(path)})

    def _print(self, line: Mapping[str, Any]) -> None:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


def tune_here(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Tune a model file on this machine."""
    reporter = Printer()
    path, chosen = Path(asked["model"]), dict(asked["options"])
    timeout_s = chosen.pop("candidate_timeout_s")
    target = target_here(asked["target"], host_target)
    check_here(target)
    plan = TuningPlan(
        data=model_bytes(path),
        name=path.name,
        target=target,
        target_name=asked["target"],
        precision=asked["precision"],
        shapes=asked["shapes"],
        dtypes=asked["dtypes"],
        cache=Path(asked["cache"]),
        job=JOB,
        options=SearchOptions(**chosen),
        candidate_timeout_s=timeout_s,
        prior=read_records(Path(asked["prior"])).set if asked["prior"] else None,  # whole: farm.cli has checked it
        same_limit=None,
    )
    ready = prepared(plan, reporter)
    reporter.folder(ready.folder)
    with HostPhones() as phones:
        records, found = searched(plan, ready, phones, reporter)
        tuned, untuned = builds(plan, ready, records, reporter)
        report = compared(tuned, untuned, phones, found["search_s"], reporter)
    if asked["output"]:
        reporter.progress("packing")
        source = plan.data if len(plan.data) <= SMALL_BYTES else None
        package, _ = make_package(ready.model, tuned.recipe, plan.cache, target_name=asked["target"], source=source)
        Path(asked["output"]).write_bytes(package)
    kept = {"where": str(ready.folder), "records": len(records.records), "name": path.name}
    return {**found, **report, "target": asked["target"], "records": kept}


def main(request: Path, reply: Path) -> None:
    """Perform the request; the reply is its result or its error."""
    try:
        answer: dict[str, Any] = {"result": tune_here(json.loads(request.read_text()))}
    except FarmError as error:
        answer = {"error": error_to_wire(error)}
    reply.write_text(json.dumps(answer))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
