"""A user's tuning script, stock or farm: `python -m benchmarks.tune_script ORDER`, ORDER is JSON.

It prints one JSON line: seconds of the call of `tune_tir`, seconds since the process began, trials, the best seconds.
Both sides are the same script with the same target, cost model, seed and number of trials; runner and builder differ.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil


def main(order: dict[str, Any]) -> None:
    """Tune a matrix multiplication."""
    import tvm
    from tvm import te
    from tvm.s_tir import meta_schedule as ms

    size = order["size"]
    a, b = te.placeholder((size, size), name="a"), te.placeholder((size, size), name="b")
    k = te.reduce_axis((0, size), name="k")
    c = te.compute((size, size), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    module = tvm.IRModule({"main": te.create_prim_func([a, b, c]).with_attr("global_symbol", "main")})
    target = tvm.target.Target(order["target"])
    with tempfile.TemporaryDirectory() as work, contextlib.ExitStack() as stack:
        runner, builder = (_farm if "socket" in order else _stock)(order, stack, ms, Path(work))
        begun_s = time.monotonic()
        database = ms.tune_tir(
            module,
            target,
            work,
            max_trials_global=order["trials"],
            num_trials_per_iter=order["per_iter"],
            builder=builder,
            runner=runner,
            cost_model=order["cost_model"],
            seed=order["seed"],
        )
        call_s = time.monotonic() - begun_s
        records = database.get_all_tuning_records()
        best_s = min(float(seconds) for record in records for seconds in record.run_secs)
    whole_s = time.time() - psutil.Process().create_time()
    print(json.dumps({"call_s": call_s, "whole_s": whole_s, "trials": len(records), "best_s": best_s}), flush=True)


def _farm(order: dict[str, Any], stack: contextlib.ExitStack, ms: Any, work: Path) -> tuple[Any, Any]:
    del ms
    from farm import FarmBuilder, FarmRunner

    runner = stack.enter_context(FarmRunner(order["on"], devices=order["devices"], socket=order["socket"]))
    return runner, stack.enter_context(FarmBuilder(runner, cache=work / "cache"))


def _stock(order: dict[str, Any], stack: contextlib.ExitStack, ms: Any, work: Path) -> tuple[Any, Any]:
    del stack, work
    from benchmarks.stock_tuning import KEY, export_so

    config = ms.runner.RPCConfig("127.0.0.1", order["tracker"], KEY, session_timeout_sec=10)
    runner = ms.runner.RPCRunner(config, max_workers=order["devices"])
    # Its limit counts the worker's imports, which are begun anew after a timeout: on a busy host 30 s would never do.
    return runner, ms.builder.LocalBuilder(f_export=export_so, timeout_sec=300.0)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
