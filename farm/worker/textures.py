"""Texture operators on a phone: each is checked there once, before the model runs, and does without if it is wrong."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tvm

from farm.common.errors import PhoneError
from farm.compiler.build import Build
from farm.compiler.compile import EXPECTED
from farm.compiler.files import replaced
from farm.compiler.model import Array
from farm.compiler.reference import flatten
from farm.compiler.texture.check import load_checks
from farm.compiler.texture.verdict import wrong_operators
from farm.worker.channel import DaemonChannel
from farm.worker.session import PhoneProcessError, PhoneSession, on_phone

Again = Callable[[Sequence[tuple[str, str]]], Build]
"""Builds the model again, without textures for these operators (name and reason)."""


def checked_textures(built: Build, session: PhoneSession, daemon: DaemonChannel, again: Again) -> Build:
    """The build, made again without textures for each operator that the phone computes wrongly with them.

    The verdict is kept beside the library, by GPU and driver: the next phone of that kind needs no check.

    Raises:
        PhoneError: the phone failed, and not over one operator alone.
        FarmError: as `farm.worker.session.prepare`.
    """
    if built.compiled.checks is None:
        return built
    gpu = gpu_of(session.device(built.device))
    while True:
        wrong = _kept(built, gpu)
        if wrong is None:
            daemon.progress("checking texture operators")
            wrong = _checked(built, session, gpu)
            _keep(built, gpu, wrong)
        if not wrong:
            assert built.compiled.textures is not None
            for sentence in built.compiled.textures.sentences():
                daemon.log(sentence)
            return built.checked_on(gpu)
        for name, reason in wrong.items():
            daemon.log(f"{name} does without textures: {reason}", "warning")
        built = again(sorted({**dict(built.recipe.refused), **wrong}.items()))
        if built.compiled.checks is None:
            return built


def gpu_of(device: Any) -> str:
    """A GPU and its driver, as OpenCL states them."""
    return ", driver ".join(str(each) for each in (device.device_name, device.driver_version) if each) or "a GPU"


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
        except PhoneProcessError:
            raise
        except PhoneError as error:  # of this operator alone
            raise RuntimeError(error.message) from error

    return wrong_operators(load_checks(library.with_name(EXPECTED)), run, built.recipe.precision, gpu)


def _verdict(built: Build, gpu: str) -> Path:
    return built.compiled.library.parent / f"checked-{hashlib.sha256(gpu.encode()).hexdigest()[:16]}.json"


def _keep(built: Build, gpu: str, wrong: Mapping[str, str]) -> None:
    with replaced(_verdict(built, gpu)) as partial:
        partial.write_text(json.dumps({"library": built.compiled.sha256, "gpu": gpu, "wrong": dict(wrong)}))


def _kept(built: Build, gpu: str) -> dict[str, str] | None:
    """The verdict of an earlier check; None: there is none, or it is torn or of another library."""
    try:
        kept = json.loads(_verdict(built, gpu).read_text())
        return dict(kept["wrong"]) if (kept["library"], kept["gpu"]) == (built.compiled.sha256, gpu) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
