"""The toolchains there are, those of the configuration and those added by command, and which bundle goes with which.

`examine` finds out whether an interpreter can host workers: it imports what they import, in a process of its own,
without a shell, in the workers' environment and within a time limit. Whatever the program does, it ends in versions or
in one clear error, and nothing of its process group is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from farm import RELEASE, __version__
from farm.bundle.golden import GoldenCompiler, compile_golden
from farm.bundle.library import DEFAULT_TOOLCHAIN, BundleLibrary, NoSuchBundleError
from farm.bundle.model import Bundle
from farm.bundle.versions import PAIR_HINT, TvmVersions, checked, of_packages
from farm.common.errors import Code, HostError, UserError
from farm.common.events import EventLog
from farm.common.install import SERVICE_SEES, pip_install
from farm.common.selector import nearest
from farm.common.tasks import at_most
from farm.jobs.config import ToolchainConfig
from farm.jobs.zygote import START_LIMIT_S, worker_environment
from farm.model.device import DeviceView
from farm.model.toolchain import Toolchain
from farm.store.database import run_to_completion
from farm.store.jobs import ToolchainTable

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")  # it names a log and a cache folder
MAX_OUTPUT_BYTES = 1 << 20  # a TVM that warns about everything writes some kB
CHUNK_BYTES = 1 << 16
END_LIMIT_S = 5.0  # from SIGKILL to the end
_MARK = "farm-toolchain "
# What the zygote itself imports, so that what works here works there; the pair's versions as they see themselves.
_PROGRAM = f"""
import importlib, json
import farm, tvm
from farm.worker.zygote import PRELOADED, versions
for module in PRELOADED:
    importlib.import_module(module)
output = {{"farm": farm.__version__, "tvm": str(tvm.__version__), "packages": versions()}}
print("\\n{_MARK}" + json.dumps(output), flush=True)
"""
_MISSING = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")


toolchain_name_error = partial(UserError, code=Code.BAD_TOOLCHAIN_NAME)


class Toolchains:
    """Every toolchain by name. One of the configuration beats one of that name in the store."""

    def __init__(
        self, configured: Mapping[str, ToolchainConfig], table: ToolchainTable, events: EventLog, bundles: BundleLibrary
    ) -> None:
        self._configured = {name: Toolchain(name, Path(each.python), each.bundle) for name, each in configured.items()}
        self._table = table
        self._events = events
        self._bundles = bundles
        self._added = {each.name: each for each in table.all() if each.name not in configured}

    def all(self) -> tuple[Toolchain, ...]:
        """Every toolchain; the configuration's first."""
        return (*self._configured.values(), *self._added.values())

    def get(self, name: str) -> Toolchain:
        """The toolchain of that name.

        Raises:
            UserError: there is none; the nearest is named.
        """
        known = {each.name: each for each in self.all()}
        if name not in known:
            near = nearest(name, known)
            hint = f"did you mean {near[0]!r}?" if near else f"toolchains: {', '.join(known)}"
            raise UserError(f"there is no toolchain {name!r}", Code.NO_SUCH_TOOLCHAIN, hint=hint)
        return known[name]

    def is_configured(self, name: str) -> bool:
        """Whether it stands in the configuration."""
        return name in self._configured

    def compiler_of(self, name: str) -> GoldenCompiler:
        """The function that compiles golden kernels in a toolchain.

        Raises:
            UserError: there is no such toolchain.
        """
        return partial(compile_golden, self.get(name).python)

    def of_bundle(self, bundle: Bundle) -> str:
        """The name of the toolchain that is paired with a bundle: one that names it, else the one it was added for."""
        return next(iter(self.naming(bundle)), bundle.toolchain)

    def of_view(self, view: DeviceView) -> str:
        """The name of the toolchain whose workers speak to a device: that of the bundle on it."""
        return self.of_bundle(self._bundles.get(view.bundle)) if view.bundle else DEFAULT_TOOLCHAIN

    def for_abi(self, abi: str, platform: str | None = None) -> Bundle | None:
        """The bundle for a device of that ABI and platform: one that a toolchain names, else the one named last.

        One whose manifest is unreadable is no phone's.

        Raises:
            NoSuchBundleError: a configured toolchain names a bundle that the library does not have.
        """
        for each in self.all():
            # Of another host's toolchain, which may name a bundle for other phones, there need be no bundle here.
            missing = () if each.name in self._configured else (NoSuchBundleError,)
            with contextlib.suppress(HostError, *missing):
                bundle = self._bundles.get(each.bundle) if each.bundle else None
                if bundle is not None and bundle.abi == abi and platform in (None, bundle.platform):
                    return bundle
        return self._bundles.for_abi(abi, platform)

    def naming(self, bundle: Bundle) -> tuple[str, ...]:
        """The toolchains that name a bundle: it must stay while they do."""
        return tuple(
            each.name
            for each in self.all()
            if each.bundle and (each.bundle in bundle.names or bundle.hash.startswith(each.bundle))
        )

    def made_for(self, name: str) -> tuple[Bundle, ...]:
        """The bundles whose golden kernels a toolchain compiled: their checks need it."""
        return tuple(bundle for bundle in self._bundles.list() if bundle.toolchain == name)

    def check_free(self, name: str) -> None:
        """Whether a toolchain may be added under that name.

        Raises:
            UserError: it is taken, or no name.
        """
        if not _NAME.fullmatch(name):
            raise toolchain_name_error(
                f"{name!r} cannot be a toolchain's name",
                hint="use lower-case letters, digits and . _ - (at most 64, first a letter or digit)",
            )
        if name in self._configured:
            raise toolchain_name_error(
                f"toolchain {name!r} stands in the configuration", hint="choose another name, or change it there"
            )
        if name in self._added:
            raise toolchain_name_error(
                f"there is a toolchain {name!r} already", hint=f"choose another name, or: farm toolchain remove {name}"
            )

    @run_to_completion
    async def add(self, toolchain: Toolchain) -> None:
        """Store a toolchain that was examined.

        Raises:
            UserError: its name is taken.
            StoreWriteError: it cannot be stored now.
        """
        self.check_free(toolchain.name)
        facts = {"python": str(toolchain.python), "bundle": toolchain.bundle, "tvm": toolchain.tvm_version}
        with self._events.drafted(("toolchain.added", toolchain.name, facts)) as drafts:
            await self._table.add(toolchain, drafts)
        self._added[toolchain.name] = toolchain

    @run_to_completion
    async def remove(self, name: str) -> None:
        """Forget a toolchain that was added by command.

        Raises:
            UserError: there is none, or it stands in the configuration.
            StoreWriteError: that cannot be written now.
        """
        self.check_removable(name)
        with self._events.drafted(("toolchain.removed", name, {})) as drafts:
            await self._table.remove(name, drafts)
        self._added.pop(name, None)

    async def stored(self) -> Mapping[str, Toolchain]:
        """The toolchains that were added by command, here or at another host of the lab, by name.

        Raises:
            HostError: the database is away.
        """
        rows = await self._table.in_thread(self._table.all)
        return {each.name: each for each in rows if each.name not in self._configured}

    @property
    def added(self) -> Mapping[str, Toolchain]:
        """Those of `stored` that are known here."""
        return self._added

    def put(self, name: str, toolchain: Toolchain | None) -> None:
        """Know a stored toolchain from now on; None: no more."""
        if toolchain is None:
            self._added.pop(name, None)
        else:
            self._added[name] = toolchain

    def check_removable(self, name: str) -> None:
        """Whether a command may remove it.

        Raises:
            UserError: there is none, or it stands in the configuration.
        """
        self.get(name)
        if name in self._configured:
            where = "it must stay" if name == DEFAULT_TOOLCHAIN else "remove it there and restart the daemon"
            raise toolchain_name_error(f"toolchain {name!r} stands in the configuration", hint=where)


toolchain_error = partial(UserError, code=Code.TOOLCHAIN_REFUSED)


@dataclass(frozen=True, slots=True)
class ToolchainFacts:
    """The versions that an interpreter reports."""

    farm: str
    tvm: str  # tvm.__version__: what a bundle records of the TVM that compiled its golden kernels
    packages: dict[str, str]  # python, apache-tvm, apache-tvm-ffi, ...

    @property
    def versions(self) -> TvmVersions:
        """Its TVM and FFI."""
        return of_packages(self.packages, self.tvm)


_FACTS = TypeAdapter(ToolchainFacts)


async def examine(python: Path, *, limit_s: float = START_LIMIT_S) -> ToolchainFacts:
    """Run `python` as workers would be run, and ask for its versions.

    Raises:
        UserError: it is missing, not executable, no Python, without TVM or farm, or takes too long.
    """
    _check_program(python)
    with tempfile.TemporaryDirectory(prefix="farm-toolchain-") as folder:
        try:
            process = await asyncio.create_subprocess_exec(
                str(python), "-P", "-c", _PROGRAM, cwd=folder, env=worker_environment(), start_new_session=True,
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            )  # fmt: skip
        except OSError as error:
            raise toolchain_error(
                f"{python} does not run: {error.strerror}", hint="give the path of an environment's bin/python"
            ) from error
        try:
            async with asyncio.timeout(limit_s):
                output = await _output(process)
        except TimeoutError as error:
            raise toolchain_error(
                f"{python} did not import TVM within {limit_s:g} s", hint=f"try: {python} -c 'import tvm'"
            ) from error
        finally:
            await asyncio.shield(_end(process))
    assert process.returncode is not None
    return _facts(python, output, process.returncode)


def check_pair(name: str, facts: ToolchainFacts, bundle: Bundle) -> str:
    """A warning if it is unknown whether a toolchain's and a bundle's TVM and FFI fit; "": they do.

    Raises:
        UserError: they are known not to fit, or the bundle does not state its versions.
    """
    if not bundle.tvm_version:
        raise toolchain_error(f"bundle {bundle.name} does not say which TVM it is from", hint="add it again")
    pair = f"toolchain {name} with bundle {bundle.name or bundle.short_hash}"
    return checked(facts.versions, bundle.versions, pair, PAIR_HINT)


def _check_program(python: Path) -> None:
    try:
        if python.is_dir():
            raise toolchain_error(f"{python} is a folder", hint=f"perhaps {python / 'bin' / 'python'}")
        if not python.exists():
            raise toolchain_error(
                f"there is no {python}", hint=f"give the path of an environment's bin/python; {SERVICE_SEES}"
            )
    except OSError as error:
        raise toolchain_error(f"cannot use {python}: {error.strerror}", hint=SERVICE_SEES) from error
    if not os.access(python, os.X_OK):
        raise toolchain_error(f"{python} is not executable", hint="give the path of an environment's bin/python")


async def _output(process: asyncio.subprocess.Process) -> bytes:
    """Everything it writes until it ends, or the beginning of too much."""
    assert process.stdout is not None
    output = bytearray()
    while chunk := await process.stdout.read(CHUNK_BYTES):
        output += chunk
        if len(output) > MAX_OUTPUT_BYTES:
            break
    else:
        await process.wait()
    return bytes(output)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill the rest of its group, and wait for its end: asyncio reaps a process after its last output was read."""
    assert process.stdout is not None
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    async with at_most(END_LIMIT_S):  # a child in a session of its own still has our pipe: it ends with it
        while await process.stdout.read(CHUNK_BYTES):
            pass
    async with asyncio.timeout(END_LIMIT_S):
        await process.wait()


def _facts(python: Path, output: bytes, exit_code: int) -> ToolchainFacts:
    lines = output.decode(errors="replace").splitlines()
    answer = next((line.removeprefix(_MARK) for line in reversed(lines) if line.startswith(_MARK)), None)
    evidence = "\n".join(lines[-5:])
    if answer is None:
        raise _refusal(python, lines, exit_code, evidence)
    try:
        facts = _FACTS.validate_json(answer)
    except ValidationError as error:
        raise toolchain_error(f"{python} answered something else than versions", evidence=evidence) from error
    if facts.farm.partition("+")[0] != RELEASE:
        raise toolchain_error(
            f"{python} has farm {facts.farm}, the daemon is farm {__version__}",
            hint=pip_install(python=str(python)),
        )
    return facts


def _refusal(python: Path, lines: list[str], exit_code: int, evidence: str) -> UserError:
    missing = next((found[1] for line in reversed(lines) if (found := _MISSING.match(line))), "")
    if missing:
        package = missing.partition(".")[0]
        return toolchain_error(f"{python} has no {package}", hint=pip_install("tvm", str(python)), evidence=evidence)
    last = next((line for line in reversed(lines) if line.strip()), "")
    ended = "was killed" if exit_code < 0 else "did not import TVM" if exit_code else "is no Python that works"
    return toolchain_error(
        f"{python} {ended}: {last.strip()[:200] or 'it wrote nothing'}",
        hint=f"try: {python} -c 'import tvm, farm.worker.zygote'",
        evidence=evidence,
    )
