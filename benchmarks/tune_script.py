"""A user's tuning script, stock or farm: `python -m benchmarks.tune_script ORDER`, ORDER is JSON.

It prints one JSON line: trials with a result, the best seconds, and where the time went, in seconds: before `tune_tir`
(`begin_s`: imports, making runner and builder), thinking of candidates (`think_s`), in the builder (`build_s`), in the
runner (`run_s`), training (`train_s`), and what else is in `tune_tir` (`rest_s`: with stock, importing tensor
intrinsics).
`cpu_s` is processor time of this process and of its children that have ended: not the phone's, nor the daemon's.

Both sides are the same script with the same target, cost model, seed and number of trials; runner and builder differ.
"""

from __future__ import annotations

import contextlib
import json
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

NO_RESULT_S = 1e9  # MetaSchedule writes 1e10 s for a candidate that failed


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
    profiler = ms.Profiler()
    with tempfile.TemporaryDirectory() as work, contextlib.ExitStack() as stack:
        runner, builder = (_farm if "socket" in order else _stock)(order, stack, ms, Path(work))
        begin_s = time.time() - order["begun_at"]
        with profiler:
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
        called_s = time.time() - order["begun_at"]
        found_s = results_s(database)
    known_s = parts(profiler)
    times = {"begin_s": begin_s, **known_s, "rest_s": called_s - begin_s - sum(known_s.values())}
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    times["cpu_s"] = sum(each.ru_utime + each.ru_stime for each in used)
    print(json.dumps({**times, "trials": len(found_s), "best_s": min(found_s)}), flush=True)


def results_s(database: Any) -> list[float]:
    """The best seconds of each trial that has a result."""
    found_s = [min(map(float, record.run_secs)) for record in database.get_all_tuning_records()]
    return [seconds for seconds in found_s if seconds < NO_RESULT_S]


def parts(profiler: Any) -> dict[str, float]:
    """MetaSchedule's own account of a tuning run (ms.Profiler), in fewer words."""
    spent_s = {str(name): float(seconds) for name, seconds in profiler.get().items()}
    words: dict[str, str | tuple[str, ...]] = {
        "think_s": "EvoSearch/",
        "build_s": "SendToBuilder",
        "run_s": ("SendToRunner", "JoinRunnerFutures"),
        "train_s": "MeasureCallback/UpdateCostModel",
    }
    # The one left out is part of another one.
    own_s = {name: seconds for name, seconds in spent_s.items() if not name.endswith("/CopyMeasuredWorkloads")}
    return {part: sum(own_s[name] for name in own_s if name.startswith(begins)) for part, begins in words.items()}


def _farm(order: dict[str, Any], stack: contextlib.ExitStack, ms: Any, work: Path) -> tuple[Any, Any]:
    del ms
    from farm import FarmBuilder, FarmRunner

    runner = stack.enter_context(
        FarmRunner(order["on"], devices=order["devices"], socket=order["socket"], same_limit=None)
    )
    return runner, stack.enter_context(FarmBuilder(runner, cache=work / "cache"))


def _stock(order: dict[str, Any], stack: contextlib.ExitStack, ms: Any, work: Path) -> tuple[Any, Any]:
    del stack, work
    from benchmarks.stock_tuning import KEY, export_so

    config = ms.runner.RPCConfig("127.0.0.1", order["tracker"], KEY, session_timeout_sec=10)
    runner = ms.runner.RPCRunner(config, max_workers=order["devices"])
    # Its limit counts the worker's imports, which are begun again after a timeout: on a busy host 30 s would never do.
    return runner, ms.builder.LocalBuilder(f_export=export_so, timeout_sec=300.0)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
