"""What one TVM with one FFI does, step by step, in a process of its own: it may crash or hang (bench_versions).

    python version_client.py compile FOLDER   compile a model into FOLDER and run it here
    python version_client.py sessions         for each order on stdin, run a folder's model on an RPC server

An order is {"folder", "port", "key", "output", "limit_s"}, and is answered by {"code"} when its session's process, a
fork that writes into the file `output`, has ended: null, it was killed at its limit. Each step is announced as a line
of JSON before it is begun, so that the last line says where a process died; the line after the last step is
{"done": facts}. numpy, TVM and its FFI are all that it needs: farm need not work with that TVM.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

ROWS, INNER, COLUMNS = 24, 64, 37  # 37: no vector width divides it
TOLERANCE = 1e-4
LIBRARY, ARRAYS = "model.so", "arrays.npz"


class WrongNumbersError(Exception):
    """Outputs differ from numpy's."""


def step(name: str) -> None:
    """Say what is begun."""
    print(json.dumps({"step": name}), flush=True)


def compile_model(folder: Path) -> dict[str, Any]:
    """Compile, export, run in this process, and what tuning does with a module; returns the versions."""
    step("import")
    import tvm
    import tvm_ffi
    from tvm import relax

    facts = {
        "tvm": str(tvm.__version__),
        "ffi": metadata.version("apache-tvm-ffi"),
        "ffi_says": _stated_ffi(next(Path(tvm_ffi.__file__).parent.rglob("libtvm_ffi.so"))),
    }
    step("compile")
    random = np.random.default_rng(7)
    weight = random.standard_normal((INNER, COLUMNS)).astype("float32")
    x = random.standard_normal((ROWS, INNER)).astype("float32")
    module = _model(relax, weight)
    executable = tvm.compile(module, target="llvm")
    step("export")
    executable.export_library(str(folder / LIBRARY))
    arrays: dict[str, Any] = {"x": x, **_expected(x, weight)}
    np.savez(folder / ARRAYS, **arrays)
    step("run here")
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(folder / LIBRARY)), tvm.cpu())
    _compare(folder, [each.numpy() for each in machine["main"](tvm.runtime.tensor(x, tvm.cpu()))])
    step("pickle a module")  # every builder of MetaSchedule sends its modules so
    if str(pickle.loads(pickle.dumps(module))) != str(module):
        raise WrongNumbersError("the module is another one after pickling")
    step("change a layout")
    _change_layout(relax)
    return facts


def serve_orders() -> None:
    """Run the sessions that are ordered, until stdin is closed."""
    import tvm  # noqa: F401 - once, for all forks
    from tvm import relax, rpc  # noqa: F401

    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            os.dup2(os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
            os._exit(reported(lambda: use_server(Path(order["folder"]), order["port"], order["key"])))  # noqa: B023
        print(json.dumps({"code": _ended(pid, time.monotonic() + order["limit_s"])}), flush=True)


def _ended(pid: int, deadline_s: float) -> int | None:
    """How a process ended; None: it had to be killed."""
    while time.monotonic() < deadline_s:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def use_server(folder: Path, port: int, key: str) -> dict[str, Any]:
    """A session: functions that are there and that are not, a model, tuning's random fill, a time."""
    import tvm
    from tvm import relax, rpc

    step("connect")
    session = rpc.connect("127.0.0.1", port, key=key)
    device = session.cpu(0)
    step("send and fetch an array")
    numbers = np.arange(12, dtype="float32").reshape(3, 4)
    if not np.array_equal(tvm.runtime.tensor(numbers, device).numpy(), numbers):
        raise WrongNumbersError("an array came back as another one")
    step("load a library")
    session.upload(bytearray((folder / LIBRARY).read_bytes()), "model.so")
    library = session.load_module("model.so")
    step("ask for a function that is not there")
    try:
        library["no_such_function"]
    except AttributeError:
        pass
    else:
        raise WrongNumbersError("a function that does not exist was found")
    step("run a model")
    machine = relax.VirtualMachine(library, device)
    with np.load(folder / ARRAYS) as arrays:
        x = tvm.runtime.tensor(arrays["x"], device)
    machine.set_input("main", x)
    machine.invoke_stateful("main")
    outputs = machine.get_outputs("main")
    _compare(folder, [outputs[0].numpy(), outputs[1].numpy()])
    step("time it")
    times = machine.time_evaluator("invoke_stateful", device, number=2, repeat=2)("main").results
    if not all(0 < each < 1 for each in times):
        raise WrongNumbersError(f"impossible times {list(times)}")
    step("random fill")
    filled = tvm.runtime.tensor(np.zeros((64, 64), "float32"), device)
    session.get_function("tvm.contrib.random.random_fill_for_measure")(filled)
    if not filled.numpy().any():
        raise WrongNumbersError("random fill left zeros")
    step("close")
    session._sess.get_function("CloseRPCConnection")()  # noqa: SLF001 - the one way to close for certain
    return {"times_s": [float(each) for each in times]}


def _model(relax: Any, weight: np.ndarray[Any, Any]) -> Any:
    builder = relax.BlockBuilder()
    x = relax.Var("x", _tensor(relax, ROWS, INNER))
    with builder.function("main", [x]):
        with builder.dataflow():
            product = builder.emit(relax.op.nn.relu(relax.op.matmul(x, relax.const(weight))))
            softened = builder.emit(relax.op.nn.softmax(product, axis=-1))
            result = builder.emit_output(relax.Tuple([product, softened]))
        builder.emit_func_output(result)
    return builder.get()


def _tensor(relax: Any, *shape: int) -> Any:
    """The type of an array; TVM 0.26 has another name for it than 0.25."""
    kind = relax.TensorStructInfo if hasattr(relax, "TensorStructInfo") else relax.TensorType
    return kind(shape, "float32")


def _expected(x: np.ndarray[Any, Any], weight: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
    product = np.maximum(x.astype("float64") @ weight.astype("float64"), 0)
    powers = np.exp(product - product.max(axis=-1, keepdims=True))
    return {"out0": product, "out1": powers / powers.sum(axis=-1, keepdims=True)}


def _compare(folder: Path, outputs: list[np.ndarray[Any, Any]]) -> None:
    with np.load(folder / ARRAYS) as arrays:
        errors = [float(np.max(np.abs(each - arrays[f"out{index}"]))) for index, each in enumerate(outputs)]
    if not all(error <= TOLERANCE for error in errors):
        raise WrongNumbersError(f"wrong numbers: off by {', '.join(f'{each:.3g}' for each in errors)}")


def _change_layout(relax: Any) -> None:
    """What every target with textures needs."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", _tensor(relax, 1, 8, 8, 8))
    with builder.function("main", [x]):
        with builder.dataflow():
            weight = relax.const(np.ones((8, 8, 3, 3), "float32"))
            result = builder.emit_output(relax.op.nn.conv2d(x, weight, padding=1))
        builder.emit_func_output(result)
    relax.transform.ConvertLayout({"relax.nn.conv2d": ["NCHW4c", "OIHW4o"]})(builder.get())


def _stated_ffi(library: Path) -> str:
    """The number that libtvm_ffi.so itself gives."""
    numbers = (ctypes.c_uint32 * 3)()
    ctypes.CDLL(str(library)).TVMFFIGetVersion(numbers)
    return ".".join(map(str, numbers))


def reported(work: Callable[[], dict[str, Any]]) -> int:
    """Do it, and say how it ended: an error is the last line. Returns an exit code."""
    try:
        facts = work()
    except Exception as error:  # noqa: BLE001 - whatever a TVM raises is the result
        kind = "wrong" if isinstance(error, WrongNumbersError) else "refused"
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        print(json.dumps({kind: f"{type(error).__name__}: {lines[-1] if lines else ''}"[:300]}), flush=True)
        return 1
    print(json.dumps({"done": facts}), flush=True)
    return 0


def main(arguments: list[str]) -> int:
    """Do one or the other."""
    if arguments[0] == "compile":
        return reported(lambda: compile_model(Path(arguments[1])))
    serve_orders()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
