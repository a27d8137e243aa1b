"""Texture operators on a phone: each is checked there once, before the model runs, and does without if it is wrong."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tvm

from farm.common.errors import Code, FarmError
from farm.compiler.build import Build
from farm.compiler.compile import EXPECTED
from farm.compiler.files import replaced
from farm.compiler.model import Array
from farm.compiler.reference import compare, flatten
from farm.compiler.texture.check import OperatorCheck, load_checks
from farm.compiler.tvm_errors import first_line
from farm.worker.channel import DaemonChannel
from farm.worker.session import PhoneSession, on_phone

UNKNOWN_GPU = "a GPU that states no name or driver"


Run = Callable[[str, Sequence[Array]], Array]
"""Calls a function of the checks' library on the device; its errors are TVM's, or a FarmError if the device is lost."""


def checked_textures(
    built: Build, session: PhoneSession, daemon: DaemonChannel, rebuild: Callable[..., Build]
) -> Build:
    """The build, made again without textures for each operator that the phone computes wrongly with them.

    The outcome is kept beside the library, by GPU and driver: the next phone of that kind needs no check. Nothing is
    kept of a GPU that does not state both, nor of a check that did not end. `rebuild` makes the build without textures
    for the operators (name and reason) that its argument `refused` has.
    """
    if built.compiled.checks is None:
        return built
    known = gpu_of(session.device(built.device))
    gpu = known or UNKNOWN_GPU
    while True:
        wrong = _kept(built, known) if known else None
        if wrong is None:
            daemon.progress("checking texture operators")
            wrong = _checked(built, session, gpu)
            if known:
                _keep(built, known, wrong)
        if not wrong:
            assert built.compiled.textures is not None
            for sentence in built.compiled.textures.sentences():
                daemon.log(sentence)
            return built.checked_on(gpu)
        for name, reason in wrong.items():
            daemon.log(f"{name} does without textures: {reason}", "warning")
        built = rebuild(refused=sorted({**dict(built.recipe.refused), **wrong}.items()))
        if built.compiled.checks is None:
            return built


def gpu_of(device: Any) -> str:
    """A GPU and its driver, as OpenCL states them; "": it does not state both."""
    name, driver = device.device_name, device.driver_version
    return f"{name}, driver {driver}" if name and driver else ""


def wrong_operators(checks: Sequence[OperatorCheck], run: Run, precision: str, device: str) -> dict[str, str]:
    """Functions that must not use textures on this device, each with the reason."""
    wrong: dict[str, str] = {}
    for each in checks:
        if each.function in wrong:
            continue
        try:
            got = run(each.entry, each.inputs)
        except FarmError:
            raise
        except Exception as error:  # noqa: BLE001 - TVM has its own kinds: an image that is too large, no resources
            wrong[each.function] = f"it fails on {device}: {first_line(error)}"
            continue
        found = compare([got], [each.expected], [each.function], precision)
        if not found.ok:
            by = found.problem or f"off by {found.max_abs_error:.3g} ({found.excess:.3g} times the limit)"
            wrong[each.function] = f"wrong numbers on {device}: {by}"
    return wrong


def _checked(built: Build, session: PhoneSession, gpu: str) -> dict[str, str]:
    library, device = built.compiled.checks, session.device(built.device)
    assert library is not None
    session.suspect = ""  # its library is not the model's
    with on_phone("loading the texture operators"):
        machine = session.virtual_machine(session.load(library, f"{built.compiled.key[:16]}-operators.so"), device)

    def run(entry: str, inputs: Sequence[Array]) -> Array:
        try:
            with on_phone(f"running the texture operator {entry}"):
                machine.set_input(entry, *(tvm.runtime.tensor(array, device) for array in inputs))
                machine.invoke_stateful(entry)
                return flatten(machine.get_outputs(entry))[0]
        except FarmError as error:
            if error.code != Code.KERNEL_REFUSED:  # phone or link may be the cause
                raise
            raise RuntimeError(error.message) from error

    return wrong_operators(load_checks(library.with_name(EXPECTED)), run, built.recipe.precision, gpu)


def _check_record(built: Build, gpu: str) -> Path:
    return built.compiled.library.parent / f"checked-{hashlib.sha256(gpu.encode()).hexdigest()[:16]}.json"


def _keep(built: Build, gpu: str, wrong: Mapping[str, str]) -> None:
    with replaced(_check_record(built, gpu)) as partial:
        partial.write_text(json.dumps({"library": built.compiled.sha256, "gpu": gpu, "wrong": dict(wrong)}))


def _kept(built: Build, gpu: str) -> dict[str, str] | None:
    """The outcome of an earlier check; None: there is none, or it is torn or of another library."""
    try:
        kept = json.loads(_check_record(built, gpu).read_text())
        return dict(kept["wrong"]) if (kept["library"], kept["gpu"]) == (built.compiled.sha256, gpu) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
