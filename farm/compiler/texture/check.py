"""Checks of texture operators: each runs alone on a device, beside its result on the host.

Each becomes a Relax function of a library of its own, which takes buffers, copies them into textures, runs the very
kernel of the model and copies its result back. So a wrong operator is reported by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax, te

from farm.compiler.inputs import write_arrays
from farm.compiler.model import Array
from farm.compiler.relax_passes import is_constant
from farm.compiler.texture.layout import fixed_shape, to_pixel_layout
from farm.compiler.texture.lowering import UnsafeKernelError
from farm.compiler.texture.network import (
    Kernels,
    TextureDecision,
    calls_of,
    decide_textures,
    read_network,
    with_scopes_applied,
)
from farm.compiler.texture.scopes import BUFFER, Limits, Scopes, TensorScopes, TextureReport

SEED = 17


@dataclass(frozen=True, slots=True)
class OperatorCheck:
    """One operator of a model, as a function of the check's library."""

    function: str  # of the model
    entry: str  # of the library
    inputs: tuple[Array, ...]
    expected: Array


@dataclass(frozen=True, slots=True)
class CheckModule:
    """The functions that check a model's operators."""

    plain: Any  # without textures: for the host
    textures: Any  # each kernel as the model has it
    functions: tuple[str, ...]  # of the model; `check_name` has the name of each one's check


def check_name(number: int) -> str:
    """The name of a check's function."""
    return f"check_{number}"


def check_module(module: Any, decided: TextureDecision) -> CheckModule:
    """The checks of every function that uses textures, once for each combination of scopes.

    Args:
        module: the model's, fused, its tensors all in buffers.
        decided: for it.
    """
    used: dict[tuple[str, Scopes], Any] = {}
    for operator, (call, _) in zip(decided.network.operators, calls_of(module["main"]), strict=True):
        scopes = decided.chosen.of(operator)
        if any(each != BUFFER for each in scopes):
            used.setdefault((operator.function, scopes), call)
    plain = _without_unused(_plain(module, used.items()))
    kernels = decided.kernels.of_module(plain)
    textures = plain
    for number, (name, scopes) in enumerate(used):
        check = check_name(number)
        textures = with_scopes_applied(textures, _as_decided(textures, check, name, scopes, kernels), check)
    return CheckModule(plain, _without_unused(textures), tuple(name for name, _ in used))


def _as_decided(module: Any, check: str, name: str, scopes: Scopes, kernels: Kernels) -> TextureDecision:
    """The scopes of a check's tensors: those of the model's operator."""
    network = read_network(module, Limits(), check)
    (checked,) = (each for each in network.operators if each.function == name)
    at = zip((*checked.reads, *checked.writes), scopes, strict=True)
    chosen = TensorScopes({tensor: scope for tensor, scope in at if scope != BUFFER})
    for operator in network.operators:
        here = chosen.of(operator)
        if any(each != BUFFER for each in here) and (why := kernels.try_build(operator.function, here)):
            raise UnsafeKernelError(f"{operator.function}: {why}")
    return TextureDecision(network, chosen, kernels)


def _plain(module: Any, used: Iterable[tuple[tuple[str, Scopes], Any]]) -> Any:
    kernels = {variable: each for variable, each in module.functions.items() if isinstance(each, tvm.tirx.PrimFunc)}
    builder = relax.BlockBuilder(tvm.IRModule(kernels))
    for number, ((_, scopes), call) in enumerate(used):
        given = call.args[1].fields
        parameters = {at: relax.Var(f"x{at}", each.ty) for at, each in enumerate(given) if not is_constant(each)}
        with builder.function(check_name(number), [*parameters.values()]):
            with builder.dataflow():
                arguments = [
                    each if is_constant(each) else _copied(builder, parameters[at], scopes[at])
                    for at, each in enumerate(given)
                ]
                result = builder.emit(relax.call_tir(call.args[0], arguments, call.ty_args[0]))
                output = builder.emit_output(_copied(builder, result, scopes[-1]))
            builder.emit_func_output(output)
    return builder.get()


def _without_unused(module: Any) -> Any:
    return relax.transform.DeadCodeElimination()(module)


def _copied(builder: Any, value: Any, scope: str) -> Any:
    """A copy of a tensor, where that is to lie in a texture: it moves there by it."""
    return value if scope == BUFFER else builder.emit_te(_copy, value, primfunc_name_hint="copy")


def _copy(tensor: Any) -> Any:
    return te.compute(tensor.shape, lambda *at: tensor[at], name="copy")


def checks_of(made: CheckModule, host: Any) -> list[OperatorCheck]:
    """The checks with seeded inputs and the results on the host; `host`: `made.plain` compiled for it."""
    machine, random, found = relax.VirtualMachine(host, tvm.cpu()), np.random.default_rng(SEED), []
    for number, name in enumerate(made.functions):
        inputs = tuple(_values(each.ty, random) for each in made.plain[check_name(number)].params)
        result = machine[check_name(number)](*map(tvm.runtime.tensor, inputs))
        found.append(OperatorCheck(name, check_name(number), inputs, result.numpy()))
    return found


def _values(kind: Any, random: np.random.Generator) -> Array:
    """Random numbers for a tensor; whole numbers may be indices: 0 is one in every tensor."""
    dtype, shape = str(kind.dtype.dtype), fixed_shape(kind) or []
    if not dtype.startswith("float"):
        return np.zeros(shape, dtype)
    return random.standard_normal(shape).astype(dtype)


def save_checks(checks: Sequence[OperatorCheck], path: Path) -> None:
    """Write the checks as an .npz; `load_checks` reads it."""
    arrays: dict[str, Array] = {"functions": np.array([each.function for each in checks])}
    for each in checks:
        arrays |= {f"{each.entry}_input_{at}": array for at, array in enumerate(each.inputs)}
        arrays[f"{each.entry}_expected"] = each.expected
    write_arrays(path, arrays)


def load_checks(path: Path) -> list[OperatorCheck]:
    """What `save_checks` wrote."""
    with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
        found = []
        for number, function in enumerate(file["functions"]):
            name = check_name(number)
            inputs: list[Array] = []
            while (key := f"{name}_input_{len(inputs)}") in file:
                inputs.append(file[key])
            found.append(OperatorCheck(str(function), name, tuple(inputs), file[f"{name}_expected"]))
        return found


@dataclass(frozen=True, slots=True)
class TextureBuild:
    """What becomes of a model."""

    module: Any  # functions with textures are scheduled, the others not yet
    checks: CheckModule
    report: TextureReport
    plain: Any  # the module without textures
    decided: TextureDecision  # where its tensors lie


def with_textures(module: Any, target: Any, refused: Mapping[str, str], fuse: Callable[[Any], Any]) -> TextureBuild:
    """Decide which operators use textures, and build them.

    Args:
        module: of a model, simplified.
        target: an OpenCL target.
        refused: functions that must not use textures, with the reason of each.
        fuse: legalises and fuses, as for a build without textures.

    Raises:
        Exception: TVM's own kinds.
    """
    with target:
        fused = relax.transform.RewriteDataflowReshape()(fuse(to_pixel_layout(module)))  # views: they take buffers
        decided = decide_textures(fused, target, refused)
        checks = check_module(fused, decided)
        made = with_scopes_applied(fused, decided)
        return TextureBuild(relax.transform.DeadCodeElimination()(made), checks, decided.report(), fused, decided)
