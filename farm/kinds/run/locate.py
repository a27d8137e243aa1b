"""`farm run --locate`: the first wrong operator of a model, who is to blame, and the smallest package that shows it.

Three parties can be: the phone, which computes other numbers than this host does from the same functions; the compiler,
if this host computes the phone's numbers from them, or TVM differs from the model's own evaluator; the precision, if
this host computes the phone's numbers in it. Only the first needs the phone beyond one run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tvm

from farm.common.errors import Code, FarmError, ModelError, PhoneError, UserError
from farm.compiler.build import Build, pack
from farm.compiler.cut import OpenModel, run
from farm.compiler.inputs import import_with
from farm.compiler.load import read
from farm.compiler.locate_rules import OperatorSearch, Tensor, first_wrong
from farm.compiler.model import Array, ImportedModel, Naming, Reference, TensorSpec, shown
from farm.compiler.package import is_package
from farm.compiler.reference import RTOL, Difference, compare, flatten
from farm.compiler.relax_passes import FLOAT32
from farm.kinds.run import RunSpec
from farm.model.specs import ModelTask
from farm.results.series import OWN_REFERENCE
from farm.worker.channel import DaemonChannel
from farm.worker.session import PhoneSession, first_run, on_phone, prepare, session_to_phone
from farm.worker.textures import checked_textures

# Tensors that one look keeps on the phone, beside the model: most networks fit, so that one look shows all.
ROOM_BYTES = 64 << 20
ROUNDED = "quantize_dequantize"  # in the name of a kernel whose result is real numbers in steps
CASE = Path("case.farm.tar")  # in the attempt's own folder

Blame = Literal["phone", "compiler", "precision", ""]
RunOnPhone = Callable[[Sequence[int], Sequence[int], Sequence[Array]], list[Array]]
"""Builds a cut, uploads it and runs it; the arguments are those of `OpenModel.for_phone`, and the cut's inputs."""


@dataclass(frozen=True, slots=True)
class Located:
    """What was found."""

    blame: Blame  # "": nothing is wrong, or nobody alone
    reason: str  # for the blame, in a sentence
    operator: str = ""  # in the words of the model's file; "": no operator alone
    kernel: str = ""  # its function in the library
    problem: str = ""  # how far it is off
    tensor: str = ""  # the form of its output
    operators: int = 0  # of the build
    uploads: int = 0
    case: bytes | None = None  # the smallest package that shows it

    def to_wire(self) -> dict[str, Any]:
        """As a result's fields."""
        names = ("blame", "reason", "operator", "kernel", "problem", "tensor", "operators", "uploads")
        return {name: getattr(self, name) for name in names}


class Uploads:
    """Runs cuts of a model in a session, and counts them."""

    def __init__(self, opened: OpenModel, session: PhoneSession, device: Any, folder: Path) -> None:
        self.opened, self.session, self.device, self.folder = opened, session, device, folder
        self.count = 0
        self.library = folder / "cut.so"  # the newest

    def run(self, wanted: Sequence[int], given: Sequence[int], arrays: Sequence[Array]) -> list[Array]:
        """A `RunOnPhone`."""
        self.opened.for_phone(wanted, given, self.library)
        self.count += 1
        self.session.suspect = ""  # no library of the job's
        with on_phone("loading a part of the model"):
            module = self.session.load(self.library, f"cut-{self.count}.so")
            machine = self.session.virtual_machine(module, self.device)
        with on_phone("running a part of the model"):
            machine.set_input("main", *(tvm.runtime.tensor(array, self.device) for array in arrays))
            machine.invoke_stateful("main")
            return flatten(machine.get_outputs("main"))


@dataclass(frozen=True, slots=True)
class PhoneSearch:
    """The end of a search on a phone, with the tensors that were fetched."""

    search: OperatorSearch
    host: Mapping[int, Array]
    phone: Mapping[int, Array]


def difference(got: Array, wanted: Array, precision: str, kernel: str = "") -> Difference:
    """How far a phone's tensor is from this host's.

    In half precision, what overflows here is not judged. Real numbers that were rounded to steps (`kernel` tells) may
    be off by one step, as integers may.
    """
    if ROUNDED in kernel and got.shape == wanted.shape:
        step = np.diff(np.unique(wanted)).min(initial=np.inf)
        got = np.where(np.abs(got - wanted) <= step * (1 + RTOL[FLOAT32]), wanted, got)
    if precision != FLOAT32 and got.shape == wanted.shape and wanted.dtype.kind not in "iub":
        got = np.where(np.isfinite(wanted.astype(np.float64)), got, wanted)
    return compare([got], [wanted], ["tensor"], precision)


def search(
    opened: OpenModel,
    inputs: Mapping[str, Array],
    on_phone: RunOnPhone,
    report: Callable[[str], None],
    room_bytes: int = ROOM_BYTES,
) -> PhoneSearch:
    """Search for the first operator that the phone computes otherwise than this host.

    Args:
        opened: the build.
        inputs: of the model, by name.
        on_phone: runs cuts on the phone.
        report: called with each step.
        room_bytes: of the tensors of one look.
    """
    host: dict[int, Array] = {}
    phone: dict[int, Array] = {}
    precision, operators = opened.recipe.precision, opened.operators

    def look(places: Sequence[int]) -> set[int]:
        report(f"looking at {len(places)} of {len(operators)} tensors")
        arrays = list(inputs.values())
        host.update(zip(places, run(opened.on_host(places), arrays), strict=True))
        phone.update(zip(places, on_phone(places, (), arrays), strict=True))
        return {each for each in places if not agrees(each, host[each])}

    def agrees(place: int, wanted: Array) -> bool:
        return difference(phone[place], wanted, precision, operators[place].kernel).ok

    def explains(place: int) -> bool:
        given = operators[place].inputs
        (alone,) = run(opened.on_host([place], given), _arrays(opened, place, given, phone, inputs))
        return agrees(place, alone)

    tensors = [Tensor(each.inputs, each.size_bytes) for each in operators]
    return PhoneSearch(first_wrong(tensors, opened.outputs, look, explains, room_bytes), host, phone)


def _arrays(
    opened: OpenModel, place: int, given: Sequence[int], tensors: Mapping[int, Array], inputs: Mapping[str, Array]
) -> list[Array]:
    """What a part takes, in order."""
    taken, positions = opened.inputs_of([place], given)
    arrays = list(inputs.values())
    return [*(tensors[each] for each in taken), *(arrays[each] for each in positions)]


def shown_alone(
    opened: OpenModel, place: int, found: PhoneSearch, inputs: Mapping[str, Array], on_phone: RunOnPhone, library: Path
) -> tuple[Blame, str, bytes | None]:
    """Who is to blame for the first wrong operator, why, and the smallest package in which the phone is wrong again.

    Args:
        opened: the build.
        place: of the operator.
        found: with this host's tensors.
        inputs: of the model, by name.
        on_phone: runs cuts on the phone.
        library: the cut that it ran last.
    """
    precision, given = opened.recipe.precision, opened.operators[place].inputs
    for part in dict.fromkeys((given, ())):
        arrays = _arrays(opened, place, part, found.host, inputs)
        (wanted,) = run(opened.on_host([place], part), arrays)
        (got,) = on_phone([place], part, arrays)
        if difference(got, wanted, precision, opened.operators[place].kernel).ok:
            continue
        case = _case(opened, place, part, arrays, wanted, library)
        if _same_here(opened, place, part, arrays, wanted):
            return "compiler", "this host computes wrong numbers, too, from the function as it is scheduled", case
        return "phone", f"this host computes it right in {precision}", case
    return "phone", "the phone is wrong in the whole model only, and right without the operators behind", None


def _same_here(opened: OpenModel, place: int, part: Sequence[int], arrays: list[Array], wanted: Array) -> bool:
    """Whether the functions as they are scheduled for the phone's CPU are wrong on this host, too."""
    if opened.target.kind.name != "llvm":
        return False
    try:
        (got,) = run(opened.same_on_host([place], part), arrays)
    except Exception:  # noqa: BLE001 - TVM's own: this host has not the phone's instructions
        return False
    return not difference(got, wanted, opened.recipe.precision, opened.operators[place].kernel).ok


def operator_words(opened: OpenModel, naming: Naming, place: int) -> str:
    """An operator in the words of the model's file. A step within one has its kernel's name, and what it leads to."""
    operator = opened.operators[place]
    others = {name for each in opened.operators if each is not operator for name in each.variables}
    if words := ", ".join(naming(operator.variables, others)):
        return words
    reader = next((at for at, each in enumerate(opened.operators) if place in each.inputs), None)
    behind = f" before {operator_words(opened, naming, reader)}" if reader is not None else ""
    return f"{operator.kernel}{behind}"


def _located(opened: OpenModel, naming: Naming, place: int, problem: str) -> Located:
    """The facts about an operator; who is to blame is to come."""
    operator = opened.operators[place]
    tensor = f"{shown(operator.spec.shape)} {operator.spec.dtype}"
    words = operator_words(opened, naming, place)
    return Located("", "", words, operator.kernel, problem, tensor, len(opened.operators))


def _case(
    opened: OpenModel, place: int, part: Sequence[int], arrays: Sequence[Array], wanted: Array, library: Path
) -> bytes:
    taken, positions = opened.inputs_of([place], part)
    specs = [(f"tensor_{each}", opened.operators[each].spec) for each in taken]
    specs += [(opened.model.inputs[each].name, opened.model.inputs[each]) for each in positions]
    reference = Reference((wanted,), (wanted,), independent=False, by=OWN_REFERENCE)
    model = replace(
        opened.model,
        name=f"{opened.operators[place].kernel} of {opened.model.name}",
        inputs=tuple(TensorSpec(name, spec.shape, spec.dtype) for name, spec in specs),
        outputs=(replace(opened.operators[place].spec, name="output"),),
    )
    return pack(model, opened.recipe, library, arrays, reference)[0]


def first_imprecise(opened: OpenModel, inputs: Mapping[str, Array]) -> tuple[int, str] | None:
    """The first operator of which this host's numbers in a build's precision leave the limits, and by how much."""
    exact = OpenModel(opened.model, replace(opened.recipe, precision=FLOAT32, records=None))
    places = {each.variables[-1]: at for at, each in enumerate(exact.operators) if each.variables}
    pairs: list[tuple[int, int]] = []
    for at, each in enumerate(opened.operators):
        of = next((places[name] for name in reversed(each.variables) if name in places), None)
        if of is not None and exact.operators[of].spec.shape == each.spec.shape:
            pairs.append((at, of))
    if not pairs:
        return None
    arrays, (coarse, fine) = list(inputs.values()), zip(*pairs, strict=True)
    made = zip(coarse, run(opened.on_host(coarse), arrays), run(exact.on_host(fine), arrays), strict=True)
    for at, ours, right in made:
        found = compare([ours.astype(right.dtype)], [right], ["tensor"], opened.recipe.precision)
        if not found.ok:
            lost = int(np.count_nonzero(~np.isfinite(ours.astype(np.float64))))
            return at, f"{lost} of {ours.size} numbers overflow" if lost else found.words
    return None


def located(task: ModelTask[RunSpec], daemon: DaemonChannel) -> dict[str, Any]:
    """The result of a job that locates."""
    spec, data = task.spec, daemon.artifact(task.spec.model)
    if is_package(data):
        hint = "give the model file that it was made from"
        raise UserError(f"{spec.name} is a package, compiled already", Code.BAD_SPEC, hint=hint)
    build = partial(prepare, task, daemon, inputs=spec.inputs, fill=spec.fill)
    built = build()
    source = read(data, spec.name)
    with source.naming() as naming:
        model, _ = import_with(source, daemon.artifact(spec.inputs) if spec.inputs else None, spec.shapes, spec.dtypes)
    daemon.progress("opening a session")
    with session_to_phone(daemon) as session:
        built = checked_textures(built, session, daemon, build)
        ran = first_run(built, session, daemon.progress)
        try:
            numerics = built.judged(ran.outputs)
            found = Located("", "all outputs are right")
        except (PhoneError, ModelError) as error:
            numerics = {}
            found = _blamed(error, built, model, naming, session, daemon)
    found = replace(found, uploads=found.uploads + 1)
    if found.case is not None:
        CASE.write_bytes(found.case)
    case = daemon.put_artifact(CASE) if found.case is not None else ""
    return {**numerics, **built.about(), "located": found.to_wire(), "package": case, "arrays": [], "fill": spec.fill}


def _blamed(
    error: FarmError, built: Build, model: ImportedModel, naming: Naming, session: PhoneSession, daemon: DaemonChannel
) -> Located:
    inputs = built.inputs
    if error.code in (Code.MISCOMPILED, Code.DISPUTED_NUMBERS):
        daemon.progress("running the operators one by one on this host")
        files = {each.name: inputs[each.name].astype(each.dtype, copy=False) for each in model.source.inputs}
        blame: Blame = "compiler" if error.code == Code.MISCOMPILED else ""
        return Located(blame, error.message, model.source.disputed_part(files))
    daemon.progress("opening the model")
    opened = OpenModel(model, built.recipe)
    if error.code == Code.WRONG_PRECISION:
        imprecise = first_imprecise(opened, inputs)
        if imprecise is None:
            return Located("precision", error.evidence, operators=len(opened.operators))
        return replace(_located(opened, naming, *imprecise), blame="precision", reason=error.evidence)
    if error.code != Code.WRONG_NUMBERS:
        raise error
    uploads = Uploads(opened, session, session.device(built.device), Path())
    found = search(opened, inputs, uploads.run, daemon.progress)
    first = found.search.first
    if first is None:
        reason = "no operator alone is wrong: small errors add up, or the memory that operators share is"
        return Located("", reason, operators=len(opened.operators), uploads=uploads.count)
    daemon.progress("running the operator alone")
    words = difference(found.phone[first], found.host[first], built.recipe.precision).words
    blame, reason, case = shown_alone(opened, first, found, inputs, uploads.run, uploads.library)
    facts = _located(opened, naming, first, words)
    return replace(facts, blame=blame, reason=reason, case=case, uploads=uploads.count)
