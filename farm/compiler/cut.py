"""A compiled model cut open: its tensors by the names of the model's file, and builds that give some of them.

A cut keeps the very functions of a build, scheduled as there, and changes only which tensors `main` takes and gives.
The host's twin has the same calls, its functions as plain loops: it computes what each tensor of the build should be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import tvm
from tvm import relax, te
from tvm.ir.instrument import pass_instrument

from farm.compiler.compile import (
    Recipe,
    compiling,
    finish,
    has_own_pipeline,
    lowered,
    scheduled,
    texture_build,
)
from farm.compiler.link import exporter
from farm.compiler.model import Array, ImportedModel, TensorSpec, numpy_dtype, shown
from farm.compiler.relax_passes import dimensions, is_constant
from farm.compiler.targets import TargetRefusedError, abi_of, described, target_from
from farm.compiler.texture.check import TextureBuild
from farm.compiler.texture.network import (
    TextureDecision,
    calls_of,
    read_network,
    with_scopes_applied,
)
from farm.compiler.texture.scopes import BUFFER, Limits, Scopes, TensorScopes

_CALL_TIR = tvm.ir.Op.get("relax.call_tir")
_FUSION = "FuseOps"
_VIEWS = relax.transform.RewriteDataflowReshape()
_USED = relax.transform.DeadCodeElimination()  # without functions that nothing calls
Change = Callable[[Any], Any]
"""A module to the module that the phone gets in its place."""


@dataclass(frozen=True, slots=True)
class Operator:
    """One tensor that a compiled model computes."""

    kernel: str  # the function that computes it
    variables: tuple[str, ...]  # of the imported model, that the function has fused; empty: unknown
    inputs: tuple[int, ...]  # operators that it reads
    spec: TensorSpec

    @property
    def size_bytes(self) -> int:
        """Of its tensor."""
        return math.prod(int(each) for each in self.spec.shape) * self.spec.dtype.itemsize


@dataclass(frozen=True, slots=True)
class _Binding:
    """One binding of `main`."""

    var: Any
    value: Any


class OpenModel:
    """A build whose tensors can be taken out, for its target and for this host."""

    def __init__(self, model: ImportedModel, recipe: Recipe, change: Change = lambda module: module) -> None:
        """`change`: of the module that the phone gets, for tests of what finds a wrong kernel.

        Raises:
            TargetRefusedError: TVM schedules for that target in one go, or refuses it.
            ModelError: TVM cannot compile the model.
        """
        self.model, self.recipe, self.change = model, recipe, change
        self.target = target_from(recipe.target)
        if has_own_pipeline(self.target):
            raise TargetRefusedError(
                f"{model.name}: TVM schedules {described(self.target)} at once, and no operator can be looked at",
                hint="--target adreno, with --texture",
            )
        watch = _FusionWatch()
        self._textures: TextureBuild | None = None
        with tvm.transform.PassContext(instruments=[watch]):
            if recipe.texture:
                self._textures = texture_build(model, recipe)
                fused = self._textures.plain
            else:
                fused = lowered(model, recipe)
        self._fused = fused
        self._plain = _flat(fused)
        variables = _variables_of(watch.before, watch.after, fused)
        watch.before = watch.after = None  # TVM keeps the watch
        self._bindings = _bindings(self._plain["main"])
        self.operators, self._places, self.outputs = _operators(self._plain["main"], self._bindings, variables)

    @cached_property
    def scheduled(self) -> Any:
        """What `main` calls, scheduled for the target."""
        return _flat(scheduled(self.model, self.recipe, self._fused)[0])

    def on_host(self, wanted: Sequence[int], given: Sequence[int] = ()) -> Any:
        """An executable for this host that gives the wanted operators' tensors; of a part, it takes the given ones."""
        with compiling(self.model, self.target):
            return finish(self._cut(self._plain, wanted, given), _host(), textures=False)

    def same_on_host(self, wanted: Sequence[int], given: Sequence[int] = ()) -> Any:
        """As `on_host`, from the functions as they are scheduled for the phone's CPU.

        Raises:
            Exception: TVM's own: this host has not the instructions that they are made of.
        """
        return finish(self._cut(self.scheduled, wanted, given), _host(), textures=False)

    def for_phone(self, wanted: Sequence[int], given: Sequence[int], library: Path) -> None:
        """Write a library for the target that gives the wanted tensors."""
        with compiling(self.model, self.target):
            if self._textures is None:
                module = self._cut(self.change(self.scheduled), wanted, given)
                executable = finish(module, self.target, textures=False)
            else:
                module = self.change(self._cut_with_textures(self._textures, wanted, given))
                executable = finish(module, self.target, textures=True)
            executable.export_library(str(library), fcompile=exporter(*abi_of(self.recipe.target)))

    @property
    def module(self) -> Any:
        """What `main` calls, its functions as plain loops."""
        return self._plain

    def inputs_of(self, wanted: Sequence[int], given: Sequence[int]) -> tuple[list[int], list[int]]:
        """Those of the given operators, and of the model's inputs, that a part takes: its parameters, in order."""
        kept = _needed(self._bindings, [self._variable(each) for each in wanted], {*map(self._variable, given)})
        used = {var for each in kept for var in _variables(each.value)}
        parameters = self._plain["main"].params
        return (
            [each for each in given if self._variable(each) in used],
            [at for at, each in enumerate(parameters) if each in used or not given],
        )

    def _variable(self, place: int) -> Any:
        return self._bindings[self._places[place]].var

    def _cut(self, module: Any, wanted: Sequence[int], given: Sequence[int]) -> Any:
        """The module whose `main` takes the given tensors and the model's inputs, and gives the wanted ones."""
        main = module["main"]
        bindings = _bindings(main)
        at = [bindings[place].var for place in self._places]
        taken, inputs = self.inputs_of(wanted, given)
        parameters = [*(at[each] for each in taken), *(main.params[each] for each in inputs)]
        kept = _needed(bindings, [at[each] for each in wanted], {at[each] for each in given})
        return _USED(_with_main(module, parameters, kept, [at[each] for each in wanted], main))

    def _cut_with_textures(self, build: TextureBuild, wanted: Sequence[int], given: Sequence[int]) -> Any:
        """The same with textures: copies bring the given tensors into them, and the wanted ones out of them."""
        main, chosen = self._plain["main"], build.decided.chosen
        operators = {var: each for (_, var), each in zip(calls_of(main), build.decided.network.operators, strict=True)}
        scopes = {var: chosen.scopes.get(each.writes[0], BUFFER) for var, each in operators.items()}
        taken, inputs = self.inputs_of(wanted, given)
        kept = _needed(self._bindings, [*map(self._variable, wanted)], {*map(self._variable, given)})
        copies = _Copies(self._plain)
        parameters = [copies.moved_in(each, scopes.get(each, BUFFER)) for each in map(self._variable, taken)]
        before = len(copies.bindings)
        outputs = [copies.moved_out(each, scopes.get(each, BUFFER)) for each in map(self._variable, wanted)]
        bindings = [*copies.bindings[:before], *kept, *copies.bindings[before:]]
        parameters += [main.params[each] for each in inputs]
        made = _with_main(copies.builder.get(), parameters, bindings, outputs, main)
        module = relax.transform.Normalize()(made)
        kernels, network = build.decided.kernels.of_module(module), read_network(module, Limits())
        calls = [operators[each.var] for each in kept if each.var in operators]
        here = TensorScopes({})
        for operator, same in zip(calls, network.operators[before:], strict=False):  # behind them are copies
            tensors = zip((*operator.reads, *operator.writes), (*same.reads, *same.writes), strict=True)
            here.scopes.update({at: chosen.scopes[each] for each, at in tensors if each in chosen.scopes})
        for name, of_copy in copies.needed:
            if why := kernels.try_build(name, of_copy):
                raise TargetRefusedError(f"{self.model.name}: a tensor cannot be copied to or from a texture: {why}")
        changed = with_scopes_applied(module, TextureDecision(network, here, kernels))
        main = changed["main"]
        result = main.body.body
        return _USED(_with_main(changed, main.params, _needed(_bindings(main), [result], set()), result, main))


class _Copies:
    """Copies of tensors into textures and out of them, as bindings."""

    def __init__(self, module: Any) -> None:
        self.builder = relax.BlockBuilder(module)
        self.bindings: list[_Binding] = []
        self.needed: list[tuple[str, Scopes]] = []  # kernels, and where their tensors lie

    def moved_in(self, var: Any, scope: str) -> Any:
        """The parameter of which `var` is a copy in a texture; without one `var` itself."""
        if scope == BUFFER:
            return var
        parameter = relax.Var("given", var.ty)
        self.bindings.append(_Binding(var, self._copy(parameter, (BUFFER, scope))))
        return parameter

    def moved_out(self, var: Any, scope: str) -> Any:
        """A variable in a buffer."""
        if scope == BUFFER:
            return var
        copied = relax.Var("copied", var.ty)
        self.bindings.append(_Binding(copied, self._copy(var, (scope, BUFFER))))
        return copied

    def _copy(self, var: Any, scopes: Scopes) -> Any:
        copy = _copy_of(dimensions(var.ty), str(var.ty.dtype))
        function = self.builder.add_func(copy, str(copy.attrs["global_symbol"]))
        self.needed.append((function.name_hint, scopes))
        return relax.call_tir(function, relax.Tuple([var]), var.ty)


def run(executable: Any, arrays: Sequence[Array]) -> list[Array]:
    """The outputs of an executable of `OpenModel` on this host."""
    machine = relax.VirtualMachine(executable, tvm.cpu())
    return [each.numpy() for each in machine["main"](*(tvm.runtime.tensor(array) for array in arrays))]


def _host() -> Any:
    return tvm.target.Target("llvm")


def _flat(module: Any) -> Any:
    """The module without dataflow blocks, so that each variable of `main` can be a parameter or an output."""
    return relax.transform.ToNonDataflow()(_VIEWS(module))


def _bindings(main: Any) -> list[_Binding]:
    return [_Binding(each.var, each.value) for block in main.body.blocks for each in block.bindings]


def _variables(value: Any) -> Iterator[Any]:
    found: list[Any] = []
    relax.analysis.post_order_visit(value, lambda part: found.append(part) if isinstance(part, tvm.ir.Var) else None)
    yield from found


def _needed(bindings: Sequence[_Binding], wanted: Sequence[Any], given: set[Any]) -> list[_Binding]:
    """The bindings from which the wanted variables are computed, those of the given ones left out."""
    needs, kept = set(wanted), []
    for each in reversed(bindings):
        if each.var in needs and each.var not in given:
            kept.append(each)
            needs.update(_variables(each.value))
    kept.reverse()
    return kept


def _with_main(module: Any, parameters: Sequence[Any], bindings: Sequence[_Binding], outputs: Any, main: Any) -> Any:
    """The module with another `main`; `outputs`: a variable, or several that it gives as a tuple."""
    pairs = [relax.VarBinding(each.var, each.value) for each in bindings]
    if isinstance(outputs, list):
        result = relax.Var("outputs", relax.TupleType([each.ty for each in outputs]))
        pairs.append(relax.VarBinding(result, relax.Tuple(outputs)))
    else:
        result = outputs
    body = relax.SeqExpr([relax.BindingBlock(pairs)], result)
    made = relax.Function(list(parameters), body, result.ty, is_pure=main.is_pure).with_attr("global_symbol", "main")
    functions = dict(module.functions.items())
    functions[module.get_global_var("main")] = made
    return tvm.IRModule(functions, attrs=module.attrs, global_infos=module.global_infos)


def _copy_of(shape: Sequence[Any], dtype: str) -> Any:
    x = te.placeholder(shape, dtype, name="x")
    copied = te.compute(shape, lambda *at: x[at], name="copied")
    name = f"farm_copy_{shown(shape)}_{dtype}"  # kernels are kept by name
    return te.create_prim_func([x, copied]).with_attr("global_symbol", name)


def _operators(
    main: Any, bindings: Sequence[_Binding], variables: Sequence[tuple[str, ...]]
) -> tuple[tuple[Operator, ...], list[int], tuple[int, ...]]:
    """The operators, the binding of each, and those that are outputs of the model."""
    operators: list[Operator] = []
    places: list[int] = []
    known: dict[Any, tuple[int, ...]] = {}  # of a variable: the operators that it comes from
    kernels: dict[Any, tuple[str, tuple[str, ...]]] = {}  # of what is no tensor, as a tuple: what made it

    def sources(value: Any) -> tuple[int, ...]:
        return tuple(sorted({each for var in _variables(value) for each in known.get(var, ())}))

    for at, (binding, names) in enumerate(zip(bindings, variables, strict=True)):
        inputs = sources(binding.value)
        made = _kernel(binding.value), names
        if isinstance(binding.value, tvm.ir.TupleGetItem):
            made = kernels.get(binding.value.tuple_value, made)
        spec = _spec(binding.var)
        if spec is None or isinstance(binding.value, tvm.ir.Var):
            known[binding.var], kernels[binding.var] = inputs, made
            continue
        known[binding.var] = (len(operators),)
        operators.append(Operator(*made, inputs, spec))
        places.append(at)
    return tuple(operators), places, sources(main.body.body)


def _spec(var: Any) -> TensorSpec | None:
    kind = var.ty
    if not isinstance(kind, relax.TensorType):
        return None
    shape = dimensions(kind)
    if any(isinstance(each, str) for each in shape):
        return None
    return TensorSpec(var.name, shape, numpy_dtype(str(kind.dtype)))


def _kernel(value: Any) -> str:
    if not isinstance(value, tvm.ir.Call):
        return "-"
    called = value.args[0] if value.op == _CALL_TIR else value.op
    return str(getattr(called, "name_hint", None) or getattr(called, "name", None) or called)


@pass_instrument
class _FusionWatch:
    """Keeps a module as it is before and after its operators are fused, which loses their variables' names."""

    def __init__(self) -> None:
        self.before: Any = None
        self.after: Any = None

    def run_before_pass(self, module: Any, info: Any) -> None:
        if info.name == _FUSION:
            self.before = module

    def run_after_pass(self, module: Any, info: Any) -> None:
        if info.name == _FUSION:
            self.after = module


def _variables_of(before: Any, after: Any, fused: Any) -> list[tuple[str, ...]]:
    """For each binding of `fused`, the variables of `before` that it computes; they are found by their value."""
    numbers = _Numbering()
    for each in _bindings(before["main"]):
        numbers.add(each.var, each.value)
    found: list[tuple[str, tuple[str, ...]]] = []  # of the calls in `after`
    for each in _bindings(after["main"]):
        function = after.functions.get(each.value.op) if isinstance(each.value, tvm.ir.Call) else None
        if isinstance(function, relax.Function):
            inner = numbers.inside(function, each.value.args)
            numbers.known[each.var] = inner.of(function.body.body)
            found.append((_kernel(each.value), tuple(dict.fromkeys(inner.found))))
        else:
            number = numbers.look_up(each.var, each.value)
            found.append((_kernel(each.value), (numbers.names[number],) if isinstance(number, int) else ()))
    made, waiting = [], iter(found)
    for each in _bindings(fused["main"]):
        kernel = _kernel(each.value)
        made.append(next((names for name, names in waiting if name == kernel), ()))
    return made


class _Numbering:
    """Numbers of values: two expressions of the same operation on the same values have the same number."""

    def __init__(self) -> None:
        self.names: list[str] = []  # by number: of the variable
        self.known: dict[Any, Any] = {}  # of variables
        self.found: list[str] = []  # names of the variables that `look_up` found
        self._numbers: dict[Any, int] = {}

    def add(self, var: Any, value: Any) -> None:
        """Number a binding."""
        key = self.of(value)
        if not isinstance(key, int):
            if key not in self._numbers:
                self._numbers[key] = len(self.names)
                self.names.append(var.name)
            key = self._numbers[key]
        self.known[var] = key

    def look_up(self, var: Any, value: Any) -> Any:
        """The number of a binding, if its value has one."""
        number = self.known[var] = self.of(value)
        if isinstance(number, int):
            self.found.append(self.names[number])
        return number

    def inside(self, function: Any, arguments: Sequence[Any]) -> _Numbering:
        """The numbers of a function's variables for these arguments."""
        inner = _Numbering()
        inner.names, inner._numbers = self.names, self._numbers
        inner.known = dict(zip(function.params, map(self.of, arguments), strict=True))
        for each in _bindings(function):
            inner.look_up(each.var, each.value)
        return inner

    def of(self, value: Any) -> Any:
        """The number of an expression; one without a number has a key of what it is made of."""
        key = self._key(value)
        return self._numbers.get(key, key)

    def _key(self, value: Any) -> Any:
        if isinstance(value, tvm.ir.Var):
            return self.known.get(value, ("parameter", value.name))
        if is_constant(value):
            return "constant", value
        if isinstance(value, tvm.ir.Tuple):
            return "tuple", *map(self.of, value.fields)
        if isinstance(value, tvm.ir.TupleGetItem):
            held = self.of(value.tuple_value)
            return (
                held[1 + value.index] if isinstance(held, tuple) and held[0] == "tuple" else ("item", held, value.index)
            )
        if isinstance(value, tvm.ir.Call):
            return "call", _kernel(value), str(value.attrs), *map(self.of, value.args)
        return "text", str(value)
