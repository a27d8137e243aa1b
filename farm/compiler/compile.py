"""An imported model to a shared library for a phone. Results are kept by the hash of everything that shapes them.

`lowered` is the seam that tuning and compiling share: MetaSchedule finds a record by the hash of the operator's whole
function, so records fit only when tasks were extracted from the very functions that are scheduled here.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tvm
from tvm import relax
from tvm.relax.backend.utils import BackendDispatcher
from tvm.s_tir import dlight
from tvm.s_tir import meta_schedule as ms

from farm.common.errors import Code, ModelError, UserError
from farm.common.files import hash_file, publish
from farm.compiler.files import drop_unused, locked
from farm.compiler.link import exporter, find_linker
from farm.compiler.record_files import BadRecordsError
from farm.compiler.records import RECORDS, WORKLOADS
from farm.compiler.relax_passes import FLOAT32, fold_batch_norm, in_precision
from farm.compiler.stamps import StampedCall, stamped
from farm.compiler.targets import (
    OWN_TEXTURES,
    ForeignRecordsError,
    TargetRefusedError,
    abi_of,
    check_target,
    check_texture_target,
    described,
    foreign_records_error,
    is_texture,
    same_target,
    target_from,
    target_text,
)
from farm.compiler.texture.check import OperatorCheck, TextureBuild, checks_of, save_checks, with_textures
from farm.compiler.texture.layout import LEGALIZED
from farm.compiler.texture.lowering import register
from farm.compiler.texture.network import on_first_device
from farm.compiler.texture.scopes import TextureReport, report_from_wire
from farm.compiler.tvm_errors import end_of, first_line, run_in_child

if TYPE_CHECKING:
    from farm.compiler.model import ImportedModel

LIBRARY = "model.so"
MADE = "made.json"  # beside it
CHECKS, EXPECTED = "operators.so", "operators.npz"  # of a build with textures: `farm.compiler.texture.check`
MADE_FIELDS = {"sha256", "seconds", "linker", "operators", "scheduled", "kernels", "textures", "checks"}
# Units that do work. Another library's function is `offloaded` in a model for a CPU; in one for a GPU it is on the CPU.
CPU, GPU, OFFLOADED = "cpu", "gpu", "offloaded"
RECIPE = 4  # raise it when this module compiles differently: older cached libraries are then not used
TEXTURE_RECIPE = 1  # the same of builds with textures


# After `fold_batch_norm`: in the weights it costs nothing, and half precision never sees a variance.
_CALL = re.compile(r"^  call  (\S+)", re.MULTILINE)
_SIMPLIFY = tvm.transform.Sequential(
    [
        relax.transform.DecomposeOpsForInference(),
        relax.transform.CanonicalizeBindings(),
        relax.transform.FoldConstant(),
    ]
)


def _fuse(legalize: Mapping[str, Any] | None = None) -> Any:
    """Operators as functions to schedule; `legalize`: of operators that are not made functions as TVM does it."""
    return tvm.transform.Sequential(
        [
            relax.backend.DispatchSampling(),
            relax.backend.DispatchSortScan(),
            relax.transform.LegalizeOps(legalize),
            relax.transform.AnnotateTIROpPattern(),
            relax.transform.FoldConstant(),
            relax.transform.FuseOps(),
            relax.transform.FuseTIR(),
            relax.transform.DeadCodeElimination(),
        ]
    )


# What is left once the operators are scheduled: TVM's own lists, spelt out because 0.27 does not export the CPU's.
_VIEWS = relax.transform.RewriteDataflowReshape()
_ALLOCATE = tvm.transform.Sequential(
    [
        relax.transform.ToNonDataflow(),
        relax.transform.RemovePurityChecking(),
        relax.transform.CallTIRRewrite(),
        relax.transform.StaticPlanBlockMemory(),
        relax.transform.LowerAllocTensor(),
    ]
)
_LOWER = tvm.transform.Sequential(
    [
        relax.transform.KillAfterLastUse(),
        relax.transform.LowerRuntimeBuiltin(),
        relax.transform.ComputePrimValue(),
        relax.transform.VMShapeLower(),
        relax.transform.AttachGlobalSymbol(),
    ]
)
_FINISH = tvm.transform.Sequential([_VIEWS, _ALLOCATE, _LOWER])
_FINISH_TEXTURES = tvm.transform.Sequential([_ALLOCATE, on_first_device, _LOWER])  # `with_textures` made the views


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a model is compiled."""

    target: object  # a TVM tag or dict, as DeviceIdentity.targets has them
    precision: str = FLOAT32
    records: Path | None = None  # folder with WORKLOADS and RECORDS
    texture: bool = False  # whether operators use textures where that is right
    refused: tuple[tuple[str, str], ...] = ()  # operators that must not, each with the reason, sorted


@dataclass(frozen=True, slots=True)
class Compiled:
    """A library ready to upload."""

    library: Path
    key: str  # hash of everything that shaped it
    sha256: str  # of the library itself
    seconds: float  # compiling and linking when it was made
    cached: bool
    linker: str
    operators: int = 0  # that records could be for
    scheduled: int = 0  # by a record
    kernels: Mapping[str, int] = field(default_factory=dict)  # calls of one run, by unit; empty: not known
    textures: TextureReport | None = None  # None: they were not asked for
    checks: Path | None = None  # the library that checks each texture operator; None: there is none, as of a package


def lowered(model: ImportedModel, recipe: Recipe) -> Any:
    """The model's operators as functions that are still to be scheduled (an IRModule): legalised, folded, fused.

    Exactly what `compile_model` schedules, so what MetaSchedule must extract tasks from.

    Raises:
        TargetError: TVM does not know the target.
        TargetRefusedError: it has no code generator for it, or schedules it all by itself.
        ModelError: TVM fails.
    """
    target = target_from(recipe.target)
    check_target(target)
    if has_own_pipeline(target):
        raise TargetRefusedError(
            f"{model.name}: TVM's records do not apply to {described(target)}", hint="tune for adreno"
        )
    with compiling(model, target), target:
        return _fuse()(_simplified(model, recipe))


def _simplified(model: ImportedModel, recipe: Recipe) -> Any:
    return in_precision(_SIMPLIFY(fold_batch_norm(model.module)), recipe.precision)


def compile_model(model: ImportedModel, recipe: Recipe) -> Any:
    """Compile; the executable can be exported or run by `relax.VirtualMachine`.

    What the records hold no schedule for runs on a CPU as plain loops, on a GPU by TVM's default schedules.

    Raises:
        TargetError: TVM does not know the target.
        TargetRefusedError: it has no code generator for it, or records do not apply to it.
        BadRecordsError: the records cannot be read.
        ForeignRecordsError: they are all for other models or targets (see farm.compiler.targets).
        ModelError: TVM fails.
    """
    return _compiled(model, recipe).executable


@dataclass(frozen=True, slots=True)
class _CompiledModel:
    executable: Any
    operators: int = 0  # that records could be for
    scheduled: int = 0  # by a record
    kernels: Mapping[str, int] = field(default_factory=dict)
    textures: TextureReport | None = None
    checks: Any = None  # an executable with a function for each check of a texture operator
    expected: tuple[OperatorCheck, ...] = ()


def _compiled(model: ImportedModel, recipe: Recipe) -> _CompiledModel:
    target = target_from(recipe.target)
    if recipe.texture:
        return _compiled_with_textures(model, recipe, target)
    if has_own_pipeline(target) and recipe.records is None:
        check_target(target)
        with compiling(model, target):
            return _CompiledModel(tvm.compile(_simplified(model, recipe), target=target))
    module, operators, with_record = scheduled(model, recipe, lowered(model, recipe))
    with compiling(model, target):
        return _CompiledModel(finish(module, target, textures=False), operators, with_record)


def kernels_of(executable: Any, target: Any) -> dict[str, int]:
    """How many kernels one run of `main` calls, by the unit that does them.

    A name with a point is a function of the runtime: of the VM itself, or of another library.
    """
    of_tvm, external = (GPU, CPU) if BackendDispatcher.is_gpu_target(target) else (CPU, OFFLOADED)
    main = executable.as_text().partition("@main:")[2].partition("\n@")[0]
    names = [name for name in _CALL.findall(main) if not name.startswith("vm.builtin.")]
    return dict(Counter(external if "." in name else of_tvm for name in names))


def _compiled_with_textures(model: ImportedModel, recipe: Recipe, target: Any) -> _CompiledModel:
    check_texture_target(target, records=recipe.records is not None)
    made = texture_build(model, recipe)
    with compiling(model, target):
        compiled = _CompiledModel(finish(made.module, target, textures=True), textures=made.report)
        if not made.checks.functions:
            return compiled
        host = finish(made.checks.plain, tvm.target.Target("llvm"), textures=False)
        checks = finish(made.checks.textures, target, textures=True)
        return replace(compiled, checks=checks, expected=tuple(checks_of(made.checks, host)))


def texture_build(model: ImportedModel, recipe: Recipe) -> TextureBuild:
    """What becomes of a model with textures.

    Raises:
        ModelError: TVM fails.
    """
    target = target_from(recipe.target)
    with compiling(model, target):
        return with_textures(_simplified(model, recipe), target, dict(recipe.refused), _fuse(LEGALIZED))


def finish(module: Any, target: Any, *, textures: bool) -> Any:
    """The executable of a module whose functions are scheduled; of one with textures, those without any are now.

    Raises:
        Exception: TVM's own kinds.
    """
    with target:
        if not textures:
            return tvm.compile(module, target=target, relax_pipeline=_FINISH)
        module = tvm.transform.Sequential(default_schedules(target))(module)
        return tvm.compile(module, target=target, relax_pipeline=_FINISH_TEXTURES, tir_pipeline=register())


def compile_stamped(model: ImportedModel, recipe: Recipe) -> tuple[Any, list[StampedCall]]:
    """As `compile_model`, but each run notes the time after each call in one more output: see `stamps`. And the calls.

    Raises:
        FarmError: as `compile_model`.
        TargetRefusedError: TVM schedules for that target in one go.
    """
    target = target_from(recipe.target)
    waits = BackendDispatcher.is_gpu_target(target)
    if recipe.texture:
        made = texture_build(model, recipe)
        with compiling(model, target), target:
            module = tvm.transform.Sequential(default_schedules(target))(made.module)
        planned, more = tvm.transform.Sequential([_ALLOCATE, on_first_device]), {"tir_pipeline": register()}
    else:
        module = scheduled(model, recipe, lowered(model, recipe))[0]
        planned, more = tvm.transform.Sequential([_VIEWS, _ALLOCATE]), {}
    with compiling(model, target), target:
        noting, calls = stamped(planned(module), waits=waits)
        return tvm.compile(noting, target=target, relax_pipeline=_LOWER, **more), calls


def scheduled(model: ImportedModel, recipe: Recipe, module: Any) -> tuple[Any, int, int]:
    """What is made of `lowered`; how many operators records could be for, and how many have one.

    Raises:
        FarmError: as `compile_model`.
    """
    target = target_from(recipe.target)
    waiting, with_record = _unscheduled(module), 0
    if recipe.records is not None:
        database = _database(recipe.records, target)
        with compiling(model, target), target, database:
            module = relax.transform.MetaScheduleApplyDatabase()(module)
        with_record = waiting - _unscheduled(module)
        # What failed, or does nothing, is no schedule, whatever it is for.
        others = any(database.get_top_k(each.workload, 1) for each in database.get_all_tuning_records())
        if others and not with_record:
            raise ForeignRecordsError(
                f"no tuning record is for an operator of {model.name} in {recipe.precision}",
                hint="farm tune makes records for this model; they fit its shapes, types and precision only",
            )
    with compiling(model, target), target:
        return tvm.transform.Sequential(default_schedules(target))(module), waiting, with_record


def _unscheduled(module: Any) -> int:
    functions = (each for each in module.functions.values() if isinstance(each, tvm.tirx.PrimFunc))
    return sum("tirx.is_scheduled" not in each.attrs for each in functions)


def compile_library(model: ImportedModel, recipe: Recipe, cache: Path) -> Compiled:
    """The model's shared library, from `cache` or made now. Two processes never make the same one twice.

    Raises:
        FarmError: as `compile_model`.
        HostError: the host cannot link for that target.
    """
    abi, platform = abi_of(recipe.target)
    linker = find_linker(abi, platform)
    facts = [
        RECIPE, model.key, recipe.target, recipe.precision, records_sha256(recipe.records), tvm.__version__, linker.name
    ]  # fmt: skip
    if recipe.texture:
        facts += [TEXTURE_RECIPE, recipe.refused]
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / key
    with locked(cache / f"{key}.lock"):
        kept = _kept(folder)
        made = kept or _make(model, recipe, folder)
        os.utime(folder)
    drop_unused(cache.iterdir())
    textures = report_from_wire(made["textures"]) if made["textures"] is not None else None
    checks = folder / CHECKS if made["checks"] else None
    return Compiled(folder / LIBRARY, key, cached=kept is not None, **{**made, "textures": textures, "checks": checks})


def _kept(folder: Path) -> dict[str, Any] | None:
    """The facts about a library that was made before; None: there is none, or no whole one.

    After a power cut files may be empty or torn, and a damaged library would be held against phones and models.
    """
    try:
        made = json.loads((folder / MADE).read_text())
        if {*made} != MADE_FIELDS:
            return None
        hashes = {LIBRARY: made["sha256"], **made["checks"]}
        return made if all(hash_file(folder / name) == sha256 for name, sha256 in hashes.items()) else None
    except (OSError, ValueError, TypeError):
        return None


def records_sha256(records: Path | None) -> str:
    """One hash of a records folder's two files; "" without records."""
    if records is None:
        return ""
    digest = hashlib.sha256()
    for name in (WORKLOADS, RECORDS):
        with contextlib.suppress(FileNotFoundError):  # `_database` reports it
            digest.update(hashlib.sha256((records / name).read_bytes()).digest())
    return digest.hexdigest()


def has_own_pipeline(target: Any) -> bool:
    """Whether TVM lays tensors out and schedules for this target in one go, which no record fits."""
    return "texture" in target.keys or "clml" in target.keys


def default_schedules(target: Any) -> list[Any]:
    """A GPU's function without a thread binding does not compile, so each gets one."""
    if not BackendDispatcher.is_gpu_target(target):
        return []
    gpu = dlight.gpu
    if "adreno" in target.keys:  # as tvm.relax.backend.adreno.pipeline
        return [
            dlight.ApplyDefaultSchedule(
                dlight.adreno.Conv2d(), dlight.adreno.LayoutTransform(), dlight.adreno.Pool2D()
            ),
            dlight.ApplyDefaultSchedule(gpu.Reduction(), gpu.GeneralReduction(), gpu.Fallback()),
        ]
    return [
        dlight.ApplyDefaultSchedule(gpu.Matmul(), gpu.GEMV(), gpu.Reduction(), gpu.GeneralReduction(), gpu.Fallback())
    ]


def _database(records: Path, target: Any) -> Any:
    """Those of the records that are for the target."""
    try:
        found = ms.database.JSONDatabase(str(records / WORKLOADS), str(records / RECORDS), allow_missing=False)
        every = list(found.get_all_tuning_records())
        mine = [each for each in every if same_target(each.target, target)]
        database = ms.database.MemoryDatabase()
        for each in mine:
            database.commit_workload(each.workload.mod)
            database.commit_tuning_record(each)
    except Exception as error:
        raise BadRecordsError(
            f"the tuning records cannot be used: {first_line(error)}",
            hint="`farm records` keeps, merges and repairs them",
            evidence=end_of(error),
        ) from error
    if every and not mine:
        raise foreign_records_error("the tuning records", target, f"they are for {target_text(every[0].target)}")
    return database


@contextlib.contextmanager
def compiling(model: ImportedModel, target: Any) -> Iterator[None]:
    """Turn every error of TVM into one that names the model and the target.

    Raises:
        ModelError: TVM failed.
    """
    try:
        yield
    except (ModelError, UserError):
        raise
    except Exception as error:
        raise ModelError(
            f"{model.name}: TVM cannot compile it for {described(target)}: {first_line(error)}",
            Code.COMPILE_FAILED,
            hint=OWN_TEXTURES if is_texture(target) else "",
            evidence=end_of(error),
        ) from error


def _make(model: ImportedModel, recipe: Recipe, folder: Path) -> dict[str, Any]:
    started_s = time.monotonic()
    abi, platform = abi_of(recipe.target)
    fcompile = exporter(abi, platform)
    partial = folder.with_suffix(f".{os.getpid()}")
    partial.mkdir()
    try:
        built = _CompiledModel(None)  # stays empty where `run_in_child` compiles: no record fits such a target

        def export() -> None:
            nonlocal built
            built = _compiled(model, recipe)
            built = replace(built, kernels=kernels_of(built.executable, target_from(recipe.target)))
            built.executable.export_library(str(partial / LIBRARY), fcompile=fcompile)
            if built.expected:
                built.checks.export_library(str(partial / CHECKS), fcompile=fcompile)
                save_checks(built.expected, partial / EXPECTED)

        if is_texture(recipe.target):  # it damages the module, which is still needed for the reference
            run_in_child(export, f"compiling {model.name} for textures", OWN_TEXTURES)
        else:
            export()
        made = {
            "sha256": hash_file(partial / LIBRARY),
            "seconds": time.monotonic() - started_s,
            "linker": find_linker(abi, platform).name,
            "operators": built.operators,
            "scheduled": built.scheduled,
            "kernels": built.kernels,
            "textures": built.textures.to_wire() if built.textures is not None else None,
            "checks": {name: hash_file(partial / name) for name in (CHECKS, EXPECTED) if built.expected},
        }
        (partial / MADE).write_text(json.dumps(made))
        shutil.rmtree(folder, ignore_errors=True)  # a damaged one
        publish(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return made
