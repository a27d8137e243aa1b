"""`farm tune --on host`: no daemon, no phone; this machine's own CPU."""

from __future__ import annotations

import json as json_
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from farm.cli.context import print_json
from farm.cli.local import LocalCrashError, cache_folder, python_with_tvm, scratch_folder
from farm.cli.records import opened, write_curve
from farm.cli.tune import Live, print_result
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
    live = Live(tty=sys.stderr.isatty())
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
        print_result(result, model.name, HOST, output)


def _carried_out(request: Mapping[str, Any], scratch: Path, live: Live, name: str, *, quiet: bool) -> dict[str, Any]:
    asked, answer, noise = (scratch / each for each in ("request.json", "reply.json", "said.txt"))
    asked.write_text(json_.dumps(request))
    with noise.open("wb") as said:
        process = subprocess.Popen(
            [python_with_tvm(), "-m", "farm.worker.tune_here", str(asked), str(answer)],
            stdout=subprocess.PIPE, stderr=said, env={**os.environ, "PYTHONWARNINGS": "ignore"}, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        try:
            for line in process.stdout:
                _tell(line, live, quiet=quiet)
        except BaseException:
            process.terminate()
            raise
        finally:
            process.wait()
            live.end()
    if not answer.is_file():
        code = process.returncode
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        raise LocalCrashError(
            f"TVM crashed ({how}) while tuning {name}",
            hint="the same command goes on where it was",
            evidence=noise.read_text(errors="replace")[-2000:],
        )
    reply = json_.loads(answer.read_text())
    if "error" in reply:
        from farm.core.error_wire import error_from_wire

        raise error_from_wire(reply["error"])
    result: dict[str, Any] = reply["result"]
    return result


def _tell(line: str, live: Live, *, quiet: bool) -> None:
    try:
        told = json_.loads(line)
    except ValueError:
        return  # something else that TVM printed
    if not quiet and isinstance(told, dict):
        live.line(str(told.get("step") or told.get("log") or ""), standing="tuning" in told)


def _prior(which: str | None, scratch: Path) -> str | None:
    if which is None:
        return None
    from farm.compiler.record_files import write_records

    _, found = opened(which)
    write_records(found.set, scratch / "prior.tar")
    return str(scratch / "prior.tar")
