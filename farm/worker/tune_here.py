"""`farm tune --on host`: `python -m farm.worker.tune_here REQUEST.json REPLY.json`, a JSON line of progress at a time.

This machine is the phone: TVM's own RPC server, in a process of its own. Nothing needs a daemon.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from farm.compiler.load import file_bytes
from farm.compiler.packing import SMALL_BYTES, make_package
from farm.compiler.record_files import read_records, write_records
from farm.compiler.targets import host_target
from farm.core.error_wire import error_to_wire
from farm.core.errors import FarmError
from farm.core.selector import HOST
from farm.fleet.named_targets import named_target
from farm.tuning.host_phone import HostPhones
from farm.tuning.search import SearchOptions
from farm.worker.tuning_run import TuningPlan, builds, compared, prepared, searched

JOB = "host"  # the name of its folder: a run that was broken off is gone on with by the same command


class Printer:
    """Tells how it goes on stdout."""

    def progress(self, step: str, **facts: Any) -> None:
        """A line of JSON."""
        self._say({"step": step, **facts})

    def log(self, text: str, level: str = "info") -> None:
        """A line of JSON."""
        self._say({"log": text, "level": level})

    def folder(self, path: Path) -> None:
        """Where the records are."""
        self._say({"folder": str(path)})

    def _say(self, line: Mapping[str, Any]) -> None:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


def tune_here(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Tune a model file on this machine.

    Raises:
        FarmError: as a tune job.
    """
    tell = Printer()
    path, chosen = Path(asked["model"]), dict(asked["options"])
    timeout_s = chosen.pop("candidate_timeout_s")
    target = host_target() if asked["target"] == HOST else named_target(asked["target"])
    plan = TuningPlan(
        data=file_bytes(path),
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
        prior=read_records(Path(asked["prior"])).set if asked["prior"] else None,  # whole: farm.cli has told the rest
        same_limit=None,
    )
    ready = prepared(plan, tell)
    tell.folder(ready.folder)
    with HostPhones() as phones:
        found = searched(plan, ready, phones, tell)
        tuned, untuned = builds(plan, ready, found.records, tell)
        report = compared(tuned, untuned, phones, found.report["search_s"], tell)
    where = Path(asked["records"]) if asked["records"] else ready.folder
    if asked["records"]:
        write_records(found.records, where)
    if asked["output"]:
        tell.progress("packing")
        source = plan.data if len(plan.data) <= SMALL_BYTES else None
        package = make_package(ready.model, tuned.recipe, plan.cache, target_name=asked["target"], source=source)
        Path(asked["output"]).write_bytes(package)
    kept = {"where": str(where), "records": len(found.records.records), "name": path.name}
    return {**found.report, **report, "target": asked["target"], "records": kept}


def main(request: Path, reply: Path) -> None:
    """Do what the request says; the reply is its result or its error."""
    try:
        answer: dict[str, Any] = {"result": tune_here(json.loads(request.read_text()))}
    except FarmError as error:
        answer = {"error": error_to_wire(error)}
    reply.write_text(json.dumps(answer))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
