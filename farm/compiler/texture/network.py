"""A fused Relax module to one whose operators read and write textures, each scheduled for where its tensors lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from farm.compiler.relax_passes import is_constant
from farm.compiler.texture.layout import fixed_shape, schedules, visited
from farm.compiler.texture.lowering import register
from farm.compiler.texture.scopes import (
    BUFFER,
    TEXTURES,
    KernelCall,
    Limits,
    Scopes,
    TensorScopes,
    TextureReport,
    choose_scopes,
    image_scope,
    report,
)
from farm.compiler.tvm_errors import first_line

_CALL_TIR, _ALLOC_STORAGE = (tvm.ir.Op.get(f"relax.{name}") for name in ("call_tir", "memory.alloc_storage"))
MAIN = "main"


@dataclass(frozen=True, slots=True)
class TensorGraph:
    """The calls of a module's `main`, and where its tensors may lie."""

    operators: tuple[KernelCall, ...]  # in the order of the calls
    textures: Mapping[int, str]  # by tensor: the scope of a texture that it fits
    too_large: Mapping[str, str]  # by function: which of its tensors fits none


class Kernels:
    """Functions built for the scopes of their tensors: each combination once."""

    def __init__(self, module: Any, target: Any, refused: Mapping[str, str]) -> None:
        """`refused`: functions that must not use textures, with the reason."""
        self._module = module
        self._target = target
        self._refused = refused
        self._built: dict[tuple[str, Scopes], Any] = {}  # a function, or the reason why there is none
        # By scope, as TVM states where a tensor lies. It compares them by identity.
        self.devices = {scope: relax.VDevice(target, at, scope) for at, scope in enumerate((BUFFER, *TEXTURES))}

    def try_build(self, name: str, scopes: Scopes) -> str:
        """Build a function for these scopes; returns why that does not work, or "" if it does."""
        if name in self._refused:
            return self._refused[name]
        if (name, scopes) not in self._built:
            self._built[name, scopes] = self._try(name, scopes)
        built = self._built[name, scopes]
        return built if isinstance(built, str) else ""

    def function(self, name: str, scopes: Scopes) -> Any:
        """The scheduled function of an earlier `try_build`."""
        return self._built[name, scopes]

    def of_module(self, module: Any) -> Kernels:
        """The same kernels, and those of another module that has these functions, too."""
        others = Kernels(module, self._target, {})
        others._built, others.devices = self._built, self.devices
        return others

    def _try(self, name: str, scopes: Scopes) -> Any:
        function = with_scopes(self._module[name], scopes)
        reason = ""
        for schedule in schedules():
            try:
                scheduled = schedule(function, self._target)
                checked_kernel(scheduled, self._target)
            except Exception as error:  # noqa: BLE001 - TVM raises its own kinds, and each means that it does not work
                reason = reason or first_line(error)
            else:
                return scheduled.with_attr("tirx.is_scheduled", True)
        return f"it cannot be built: {reason}"


def with_scopes(function: Any, scopes: Scopes) -> Any:
    """A function whose tensors lie there."""
    buffers = {}
    for parameter, scope in zip(function.params, scopes, strict=True):
        if scope != BUFFER:
            buffers[parameter] = tirx.decl_buffer(parameter.shape, parameter.dtype, parameter.name, scope=scope)
    return function.specialize(buffers) if buffers else function


def checked_kernel(function: Any, target: Any) -> Any:
    """What TVM generates of one scheduled function.

    Raises:
        Exception: TVM cannot build it, or it would be wrong (UnsafeKernelError).
    """
    module = tvm.IRModule({MAIN: function.with_attr("global_symbol", MAIN)})
    return tvm.compile(module, target=target, tir_pipeline=register())


def read_network(module: Any, limits: Limits, entry: str = MAIN) -> TensorGraph:
    """The calls of a Relax function, whose tensors are numbered: each variable, and each constant of each call."""
    numbers: dict[Any, int] = {}
    textures: dict[int, str] = {}
    too_large: dict[str, str] = {}
    operators: list[KernelCall] = []
    elsewhere = _used_elsewhere(module[entry])

    def number(key: Any, kind: Any, name: str, *, movable: bool) -> int:
        tensor = numbers.setdefault(key, len(numbers))
        shape = fixed_shape(kind)
        if movable and shape is not None:
            scope, reason = image_scope(shape, str(kind.dtype.dtype), limits)
            if scope:
                textures[tensor] = scope
            elif reason:
                too_large.setdefault(name, reason)
        return tensor

    for call, variable in calls_of(module[entry]):
        name = str(call.args[0].name_hint)
        single = isinstance(variable.ty, relax.TensorType)
        reads = tuple(
            number((len(operators), at) if is_constant(each) else each, each.ty, name,
                   movable=single and (is_constant(each) or each not in elsewhere))
            for at, each in enumerate(call.args[1].fields)
        )  # fmt: skip
        writes = (number(variable, variable.ty, name, movable=single and variable not in elsewhere),)
        operators.append(KernelCall(name, reads, writes))
    return TensorGraph(tuple(operators), textures, too_large)


def calls_of(function: Any) -> list[tuple[Any, Any]]:
    """The calls of kernels in a function, with the variable of each one's result."""
    bindings = [binding for block in function.body.blocks for binding in block.bindings]
    return [(each.value, each.var) for each in bindings if _is_kernel_call(each.value)]


def _is_kernel_call(value: Any) -> bool:
    return isinstance(value, tvm.ir.Call) and value.op == _CALL_TIR and len(value.args) == 2


def _used_elsewhere(function: Any) -> set[Any]:
    """Variables that something else than a kernel has: the function's parameters and results, views, tuples."""
    found = set(function.params)

    def note(value: Any) -> None:
        relax.analysis.post_order_visit(value, lambda each: found.add(each) if isinstance(each, tvm.ir.Var) else None)

    for block in function.body.blocks:
        for binding in block.bindings:
            if not _is_kernel_call(binding.value):
                found.add(binding.var)
                note(binding.value)
    note(function.body.body)
    return found


@dataclass(frozen=True, slots=True)
class TextureDecision:
    """What was decided for a Relax function: where its tensors lie, with kernels built for that."""

    network: TensorGraph
    chosen: TensorScopes
    kernels: Kernels

    def report(self) -> TextureReport:
        """Which of its operators use textures, and why the others that could do not."""
        network = self.network
        able = {each.function for each in network.operators if {*each.reads, *each.writes} & network.textures.keys()}
        return report(network.operators, self.chosen, able | network.too_large.keys())


def decide_textures(module: Any, target: Any, refused: Mapping[str, str]) -> TextureDecision:
    """Where each tensor of `main` lies, with kernels built for that.

    Args:
        module: legalised and fused, its functions not scheduled.
        target: with the largest image of its GPU.
        refused: functions that must not use textures, with the reason.
    """
    network, kernels = read_network(module, limits_of(target)), Kernels(module, target, refused)
    chosen = choose_scopes(network.operators, network.textures, kernels.try_build)
    chosen.reasons.update({name: why for name, why in network.too_large.items() if name not in chosen.reasons})
    return TextureDecision(network, chosen, kernels)


def limits_of(target: Any) -> Limits:
    """The largest image of a target."""
    given = {"side": target.attrs.get("texture_spatial_limit"), "layers": target.attrs.get("texture_depth_limit")}
    return Limits(**{name: int(size) for name, size in given.items() if size is not None})


def with_scopes_applied(module: Any, decided: TextureDecision, entry: str = MAIN) -> Any:
    """The module with the tensors of one Relax function where they lie, and kernels that find them there."""
    rewriter = _ScopeRewriter(module)
    rewriter.enter(decided)
    variable = module.get_global_var(entry)
    rewriter.builder_.update_func(variable, rewriter.visit_expr(module[variable]))
    made = rewriter.builder_.get()
    made.update_global_info("vdevice", list(decided.kernels.devices.values()))
    return made


@mutator
class _ScopeRewriter(PyExprMutator):  # type: ignore[misc]  # TVM publishes no types
    """Rewrites each call to the function that is built for the scopes of its tensors."""

    def enter(self, decided: TextureDecision) -> None:
        """Learn what the calls are, in their order, and where their tensors lie."""
        self.calls = iter(decided.network.operators)
        self.chosen = decided.chosen
        self.kernels = decided.kernels
        self.variables: dict[tuple[str, Scopes], Any] = {}

    def visit_call_(self, call: Any) -> Any:
        """A call of another function, where one of its tensors is in a texture."""
        call = super().visit_call_(call)
        if not _is_kernel_call(call):
            return call
        operator = next(self.calls, None)
        scopes = self.chosen.of(operator) if operator is not None else ()
        if operator is None or all(each == BUFFER for each in scopes):
            return call
        given = [
            tvm.ir.GenericConst(each.value, self._on(each.ty, scope)) if is_constant(each) else each
            for each, scope in zip(call.args[1].fields, scopes, strict=False)
        ]
        result = call.ty_args[0]
        if not isinstance(result, tvm.ir.TupleType):
            result = self._on(result, scopes[-1])
        function = self._function(operator.function, scopes)
        return relax.Call(call.op, [function, relax.Tuple(given)], call.attrs, [result])

    def visit_if_(self, branch: Any) -> Any:
        """Leave what is in branches in buffers: `calls_of` does not list it."""
        calls, self.calls = self.calls, iter(())
        branch = super().visit_if_(branch)
        self.calls = calls
        return branch

    def _function(self, name: str, scopes: Scopes) -> Any:
        if (name, scopes) not in self.variables:
            scheduled = self.kernels.function(name, scopes)
            self.variables[name, scopes] = self.builder_.add_func(scheduled, f"{name}_texture")
        return self.variables[name, scopes]

    def _on(self, kind: Any, scope: str) -> Any:
        return kind if scope == BUFFER else relax.TensorType(kind.shape, kind.dtype, self.kernels.devices[scope])


@tvm.transform.module_pass(opt_level=0, name="farm.OnFirstDevice")  # type: ignore[untyped-decorator]
def on_first_device(module: Any, _context: Any) -> Any:
    """Storage on the VM's first device: TVM writes the number of a tensor's scope where the VM expects a device's."""
    return visited(_OnFirstDevice, module)


@mutator
class _OnFirstDevice(PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: Any) -> Any:
        call = super().visit_call_(call)
        if call.op != _ALLOC_STORAGE or int(call.args[1]) <= 0:
            return call
        return relax.Call(call.op, [call.args[0], relax.prim_value(0), *call.args[2:]], call.attrs, call.ty_args)
