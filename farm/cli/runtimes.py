"""`farm bundle`, `farm toolchain` and `farm poison`: the runtimes of models, on phones and on the host.

docs/bundles.md says how to build a bundle.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from farm.bundle.folder import DESCRIPTION, read_folder
from farm.bundle.model import Abi, Platform, check_bundle_name
from farm.bundle.versions import TvmVersions
from farm.cli import complete, work
from farm.cli.connection import JsonFlag, call, call_and_emit
from farm.cli.output import emit, local_time, print_note, table
from farm.cli.output.terminal import interruptible, steps
from farm.common.durations import many
from farm.common.errors import Code, ExitCode, HostError, UserError
from farm.common.files import hash_file, short_hash
from farm.common.install import TVM_SOURCE_VARIABLE
from farm.common.selector import did_you_mean

if TYPE_CHECKING:
    from farm.runtime.checkout import HostTvm
    from farm.runtime.ndk_build import NdkRecipe

bundle = typer.Typer(help="Runtime bundles: tvm_rpc and its libraries, per ABI.")
toolchain = typer.Typer(help="Toolchains: host interpreters with a TVM, and the bundles built from the same.")
poison = typer.Typer(help="Poisons: libraries that killed their process on a phone twice; farm refuses to run them.")

SHA256_CHARS = 64
HELP = "farm bundle build --help"

Bundle = Annotated[
    str, typer.Argument(help="A bundle's name or the start of its hash.", autocompletion=complete.bundles)
]
Toolchain = Annotated[str, typer.Argument(help="A toolchain's name.", autocompletion=complete.toolchains)]


@bundle.command("add")
def add_bundle(
    folder: Annotated[Path, typer.Argument(help="Folder with tvm_rpc and its libraries.")],
    name: Annotated[str, typer.Option(help="Its name; the folder's by default.")] = "",
    toolchain: Annotated[
        str, typer.Option(help="The toolchain built from the same TVM.", autocompletion=complete.toolchains)
    ] = "default",
    json: JsonFlag = False,
) -> None:
    """Check a folder's ELF closure, compile its golden kernels and keep it."""
    path = folder.absolute()
    _add(path, name or path.name, toolchain, json=json)


def _add(folder: Path, name: str, toolchain: str, *, json: bool) -> None:
    """Add a folder: uploaded if it is here, since the service may not read it; else it is on the daemon's host."""
    fields = {"name": name, "toolchain": toolchain}
    source = {"packed": _upload(folder)} if os.path.lexists(folder) else {"folder": str(folder)}
    answer = call("bundle.add", on_progress=_print_step, **fields, **source)
    emit(answer, f"added {_summary(answer)}: {_state(answer)}", json=json)
    for warning in () if json else answer["warnings"]:
        print_note(f"warning: {warning}")


def _upload(folder: Path) -> str:
    """The artifact of a folder that can be a bundle.

    Raises:
        UserError: it cannot be one.
        HostError: it cannot be read.
    """
    from farm.bundle.storage import host_errors, pack_folder

    read_folder(folder).accepted(str(folder))
    with tempfile.TemporaryDirectory() as made, work.client() as farm:
        packed = Path(made) / folder.name
        with host_errors(f"packing {folder}", packed.parent), packed.open("xb") as file:
            pack_folder(folder, file)
        return farm.put_file(packed)


@bundle.command("build")
def build_bundle(
    name: Annotated[str, typer.Argument(help="The bundle's name.")],
    from_wheel: Annotated[
        bool, typer.Option("--from-wheel", help="Out of TVM's wheel and Debian's packages (the default, for CPUs).")
    ] = False,
    ndk: Annotated[Path | None, typer.Option(help="Compile TVM with the Android NDK in this folder instead.")] = None,
    tvm_source: Annotated[
        Path | None,
        typer.Option(
            envvar=TVM_SOURCE_VARIABLE, help="A checkout of TVM, of the toolchain's version, with submodules."
        ),
    ] = None,
    opencl: Annotated[bool, typer.Option("--opencl", help="With the runtime for GPUs.")] = False,
    clml: Annotated[
        Path | None, typer.Option(help="Qualcomm's OpenCL ML SDK: for Adreno, with the runtime for GPUs.")
    ] = None,
    abi: Annotated[Abi, typer.Option(help="The phones' ABI.")] = Abi.ARM64,
    platform: Annotated[
        Platform, typer.Option(help="The phones' system: android; linux-glibc for virtual phones.")
    ] = Platform.ANDROID,
    toolchain: Annotated[
        str, typer.Option(help="The toolchain whose TVM it is to have.", autocompletion=complete.toolchains)
    ] = "default",
    json: JsonFlag = False,
) -> None:
    """Build a runtime for phones, and keep it (operators)."""
    from farm.runtime.build import check_opencl
    from farm.runtime.checkout import CLONE
    from farm.runtime.ndk_build import NdkRecipe

    check_bundle_name(name)  # before minutes of building
    if ndk:
        _refuse_with("--ndk", **{"--from-wheel": from_wheel, "--platform": platform is not Platform.ANDROID})
        if tvm_source is None:
            raise UserError("--ndk needs --tvm-source: TVM is compiled", hint=f"{CLONE}, of the toolchain's version")
        sdk = clml.absolute() if clml else None
        recipe = NdkRecipe(abi, ndk.absolute(), tvm_source.absolute(), opencl, sdk)
        folder = _build_with_ndk(recipe, toolchain)
    else:
        if clml:
            raise UserError("--clml needs --ndk: TVM is compiled for it", hint=HELP)
        # A checkout that only the environment names may be for other builds: it is not refused.
        if tvm_source and not opencl and str(tvm_source) != os.environ.get(TVM_SOURCE_VARIABLE):
            raise UserError("--tvm-source needs --ndk or --opencl: TVM's wheel is taken as it is", hint=HELP)
        if opencl:
            check_opencl(platform)
        if opencl and tvm_source is None:
            raise UserError("--opencl needs --tvm-source: TVM's wheels have no OpenCL", hint=f"{CLONE}, of its version")
        folder = _build_from_wheels(abi, platform, toolchain, tvm_source.absolute() if opencl and tvm_source else None)
    _check_free(name, folder)
    _add(folder, name, toolchain, json=json)


def _refuse_with(option: str, **others: bool) -> None:
    for other, given in others.items():
        if given:
            raise UserError(f"{other} and {option} do not go together", hint=HELP)


def _build_with_ndk(recipe: NdkRecipe, toolchain: str) -> Path:
    from farm.runtime.ndk_build import build_with_ndk, find_tools
    from farm.runtime.parts import default_cache

    find_tools(recipe)  # before the daemon is asked
    host = _host_tvm(toolchain, _toolchain_up(toolchain))
    with interruptible(), steps() as report:
        return build_with_ndk(default_cache(), recipe, host, report)


def _build_from_wheels(abi: Abi, platform: Platform, toolchain: str, opencl_source: Path | None) -> Path:
    from farm.runtime.build import build_from_wheels, check_host
    from farm.runtime.checkout import check_checkout
    from farm.runtime.packages import check_versions
    from farm.runtime.parts import default_cache

    check_host(cache := default_cache(), abi, platform, opencl_source)  # before the daemon is asked
    row = _toolchain_up(toolchain)
    versions = check_versions(row["versions"], f"toolchain {toolchain}")
    if opencl_source:
        check_checkout(opencl_source, _host_tvm(toolchain, row))
    with interruptible(), steps() as report:
        return build_from_wheels(cache, abi, platform, versions, report, opencl_source)


def _host_tvm(toolchain: str, row: Mapping[str, Any]) -> HostTvm:
    from farm.runtime.checkout import find_host_tvm

    return find_host_tvm(f"toolchain {toolchain}", row["python"], row["tvm"], row["versions"].get("apache-tvm-ffi", ""))


def _toolchain_up(toolchain: str) -> Mapping[str, Any]:
    """The row of a toolchain whose TVM is known.

    Raises:
        FarmError: there is no such toolchain, or it is not up.
    """
    known = {each["name"]: each for each in call("toolchain.list")["toolchains"]}
    if toolchain not in known:
        raise UserError(
            f"there is no toolchain {toolchain!r}",
            Code.NO_SUCH_TOOLCHAIN,
            hint=did_you_mean(toolchain, known, f"there are: {', '.join(known)}"),
        )
    if not known[toolchain]["up"]:
        raise HostError(f"toolchain {toolchain} is not up, so its TVM's version is not known", hint="farm doctor")
    return dict(known[toolchain])


def _check_free(name: str, folder: Path) -> None:
    """Refuse a name that a bundle with other files has.

    Raises:
        UserError: it is taken.
    """
    made = {path.name: hash_file(path) for path in folder.iterdir() if path.name != DESCRIPTION}
    for each in call("bundle.list")["bundles"]:
        if name in each["names"] and {file["name"]: file["sha256"] for file in each["files"]} != made:
            raise UserError(
                f"there is another bundle {name}, {short_hash(each['hash'])} for {each['abi']}",
                Code.BUNDLE_NAME_TAKEN,
                hint=f"another name, or first: farm bundle remove {name}",
            )


@bundle.command("list")
def list_bundles(json: JsonFlag = False) -> None:
    """Every bundle."""
    answer = call("bundle.list")
    rows = (
        (", ".join(b["names"]), short_hash(b["hash"]), b["abi"], b["tvm_version"] or "-", b["ffi_version"] or "-",
         "yes" if b["has_opencl"] else "no", len(b["files"]), f"{b['size_bytes'] / 1e6:.1f} MB", b["toolchain"],
         _state(b))
        for b in answer["bundles"]
    )  # fmt: skip
    titles = ("NAME", "HASH", "ABI", "TVM", "FFI", "OPENCL", "FILES", "SIZE", "TOOLCHAIN", "STATE")
    emit(answer, table(titles, rows, none="no bundles: farm bundle build NAME"), json=json)


@bundle.command("show")
def show_bundle(which: Bundle, json: JsonFlag = False) -> None:
    """One bundle's files and golden kernels."""
    answer = call("bundle.show", bundle=which)
    rows = ((file["name"], file["size_bytes"], file["sha256"]) for file in answer["files"])
    files = table(("FILE", "SIZE", "SHA256"), rows)
    golden = f"golden kernels: {', '.join(answer['golden']) or 'none'}"
    versions = f"of {TvmVersions(answer['tvm_version'], answer['ffi_version'])}"
    emit(answer, [f"{_summary(answer)}: {_state(answer)}", versions, *files, golden], json=json)


@bundle.command("remove")
def remove_bundle(which: Bundle, json: JsonFlag = False) -> None:
    """Forget a bundle that no phone uses."""
    call_and_emit("bundle.remove", "removed {name}", json=json, bundle=which)


@bundle.command("promote")
def promote_bundle(which: Bundle, json: JsonFlag = False) -> None:
    """Make a bundle current, without a canary and although it was refused (operators)."""
    answer = call("bundle.promote", bundle=which)
    takers = f"{many(answer['takers'], 'phone')} ({answer['abi']}, {answer['platform']})"
    emit(answer, f"{answer['name'] or short_hash(answer['hash'])} is current: {takers} will take it", json=json)


@bundle.command("rollback")
def roll_back_bundle(which: Bundle, json: JsonFlag = False) -> None:
    """Withdraw a candidate, or the current bundle in favour of the one before (operators)."""
    answer = call("bundle.rollback", bundle=which)
    emit(answer, f"{answer['name'] or short_hash(answer['hash'])} is refused: {answer['reason']}", json=json)


@bundle.command("verify")
def verify_bundle(which: Bundle, json: JsonFlag = False) -> None:
    """Hash every file of a bundle again."""
    answer = call("bundle.verify", bundle=which)
    differences = answer["differences"]
    verdict = f"{answer['name']}: {'damaged' if differences else 'intact'}"
    emit(answer, [verdict, *(f"  {each}" for each in differences)], json=json)
    raise typer.Exit(ExitCode.FAILED if differences else ExitCode.OK)


def _print_step(progress: Mapping[str, Any]) -> None:
    print_note(progress["step"])


def _state(bundle: Mapping[str, Any]) -> str:
    """Where it stands in the rolling upgrade, with the reason of a failure."""
    state = str(bundle["state"])
    if state == "rolling-out":
        state = f"rolling out ({bundle['phones']} of {bundle['of']})"
    if state.startswith(("candidate", "rolling")):
        state += f", {'; '.join(map(_trying, bundle['trying'])) or 'waits for an idle phone'}"
    return f"{state}: {bundle['reason']}" if bundle["reason"] else state


def _trying(phone: Mapping[str, str]) -> str:
    since = f" since {local_time(phone['since'])}" if phone["since"] else ""
    return f"on {phone['device']}{since}: {phone['waits']}"


def _summary(bundle: Mapping[str, Any]) -> str:
    return f"{bundle['name']} {short_hash(bundle['hash'])} for {bundle['abi']}, {len(bundle['files'])} files"


@toolchain.command("add")
def add_toolchain(
    name: Toolchain,
    python: Annotated[Path, typer.Option(help="The interpreter of an environment with TVM and farm.")],
    bundle: Annotated[str, typer.Option(help="The bundle built from the same TVM, for its phones.")] = "",
    json: JsonFlag = False,
) -> None:
    """Let an interpreter import its TVM, compare it with the bundle's, and use it from now on (operators)."""
    path = python.absolute()  # not resolved: a virtual environment's python is a link, and its place tells which
    answer = call("toolchain.add", on_progress=_print_step, name=name, python=str(path), bundle=bundle)
    paired = f", paired with bundle {answer['bundle']}" if answer["bundle"] else ""
    emit(answer, f"added {answer['name']}: TVM {answer['tvm']} in {answer['python']}{paired}", json=json)
    for warning in () if json else answer["warnings"]:
        print_note(f"warning: {warning}")


@toolchain.command("list")
def list_toolchains(json: JsonFlag = False) -> None:
    """Every toolchain."""
    answer = call("toolchain.list")
    rows = (
        (t["name"], t["tvm"] or "-", t["ffi"] or "-", t["bundle"] or "-", "up" if t["up"] else "not up",
         "config" if t["configured"] else "command", t["python"])
        for t in answer["toolchains"]
    )  # fmt: skip
    emit(answer, table(("NAME", "TVM", "FFI", "BUNDLE", "STATE", "FROM", "PYTHON"), rows), json=json)


@toolchain.command("remove")
def remove_toolchain(which: Toolchain, json: JsonFlag = False) -> None:
    """Forget a toolchain that was added by command and that nothing needs (operators)."""
    call_and_emit("toolchain.remove", "removed {name}", json=json, name=which)


@poison.command("list")
def list_poison(json: JsonFlag = False) -> None:
    """Libraries that killed a worker, the latest first."""
    answer = call("poison.list")
    emit(answer, _poison_lines(answer), json=json)


def _poison_lines(answer: Mapping[str, Any]) -> Iterator[str]:
    yield from table(
        ("LIBRARY", "KILLS", "STATE", "LAST", "DEVICE", "USER", "JOB", "WHAT"),
        (
            (
                short_hash(row["artifact"]), str(row["kills"]), _poison_state(row),
                local_time(row["last_at"]), row["device"], row["user"], row["job"], row["what"],
            )
            for row in answer["poison"]
        ),
        none="no poisons: farm refuses no library",
        below="WHAT",
    )  # fmt: skip
    if answer["more"]:
        yield f"{answer['more']} more"


def _poison_state(row: Mapping[str, Any]) -> str:
    if row["refused"]:
        return "refused"
    return f"refused to {row['user']}" if row["refused_to_user"] else "suspect"


@poison.command("forget")
def forget_poison(
    library: Annotated[str, typer.Argument(help="Its SHA-256, or a beginning such as `farm poison list` shows.")],
    json: JsonFlag = False,
) -> None:
    """Let a library be run again (operators)."""
    asked = library.strip().lower()
    known = [row["artifact"] for row in call("poison.list")["poison"] if asked and row["artifact"].startswith(asked)]
    if len(known) > 1:
        raise UserError(f"{len(known)} libraries begin with {library!r}", hint="write more of it")
    if not known and len(asked) != SHA256_CHARS:
        raise UserError(f"no library that killed anything begins with {library!r}", hint="see: farm poison list")
    answer = call("poison.forget", artifact=known[0] if known else asked)
    emit(answer, f"{short_hash(answer['artifact'])} may be run again", json=json)
