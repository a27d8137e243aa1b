"""Whether an interpreter can host workers, found out by letting it import what they import.

In a process of its own, without a shell, in the workers' environment and within a time limit: whatever the program
does, it ends in versions or in one clear error, and nothing of its process group is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import tempfile
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from farm import __version__
from farm.bundle.manifest import Bundle
from farm.core.errors import UserError
from farm.core.extras import pip_install
from farm.jobs.zygote import START_LIMIT_S, worker_environment

MAX_SAID_BYTES = 1 << 20  # a TVM that warns about everything says some kB
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
said = {{"farm": farm.__version__, "tvm": str(tvm.__version__), "packages": versions()}}
print("\\n{_MARK}" + json.dumps(said), flush=True)
"""
_MISSING = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
_BUILD_HINT = "both must be built from the same TVM: docs/bundles.md says how to build a bundle"


class ToolchainRefusedError(UserError):
    """The interpreter cannot be a toolchain."""

    code = "toolchain_refused"


@dataclass(frozen=True, slots=True)
class ToolchainFacts:
    """What an interpreter said of itself."""

    farm: str
    tvm: str  # tvm.__version__: what a bundle records of the TVM that compiled its golden kernels
    packages: dict[str, str]  # python, apache-tvm, apache-tvm-ffi, ...


_FACTS = TypeAdapter(ToolchainFacts)


async def examine(python: Path, *, limit_s: float = START_LIMIT_S) -> ToolchainFacts:
    """Run `python` as workers would be run, and ask for its versions.

    Raises:
        ToolchainRefusedError: it is missing, not executable, no Python, without TVM or farm, or takes too long.
    """
    _check_program(python)
    with tempfile.TemporaryDirectory(prefix="farm-toolchain-") as folder:
        try:
            process = await asyncio.create_subprocess_exec(
                str(python), "-c", _PROGRAM, cwd=folder, env=worker_environment(), start_new_session=True,
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            )  # fmt: skip
        except OSError as error:
            raise ToolchainRefusedError(
                f"{python} does not run: {error.strerror}", hint="give the path of an environment's bin/python"
            ) from error
        try:
            said = await asyncio.wait_for(_said(process), limit_s)
        except TimeoutError as error:
            raise ToolchainRefusedError(
                f"{python} did not import TVM within {limit_s:g} s", hint=f"try: {python} -c 'import tvm'"
            ) from error
        finally:
            await asyncio.shield(_end(process))
    assert process.returncode is not None
    return _facts(python, said, process.returncode)


def check_pair(name: str, facts: ToolchainFacts, bundle: Bundle) -> None:
    """Refuse a bundle from another TVM: the two speak through structures that only equal versions share.

    Raises:
        ToolchainRefusedError: the versions differ; both are named.
    """
    if not bundle.tvm_version:
        raise ToolchainRefusedError(f"bundle {bundle.name} does not say which TVM it is from", hint="add it again")
    if facts.tvm != bundle.tvm_version:
        raise ToolchainRefusedError(
            f"toolchain {name} has TVM {facts.tvm}, bundle {bundle.name or bundle.short_hash} is from TVM"
            f" {bundle.tvm_version}",
            hint=_BUILD_HINT,
        )


def _check_program(python: Path) -> None:
    if python.is_dir():
        raise ToolchainRefusedError(f"{python} is a folder", hint=f"perhaps {python / 'bin' / 'python'}")
    if not python.exists():
        raise ToolchainRefusedError(f"there is no {python}", hint="give the path of an environment's bin/python")
    if not os.access(python, os.X_OK):
        raise ToolchainRefusedError(f"{python} is not executable", hint="give the path of an environment's bin/python")


async def _said(process: asyncio.subprocess.Process) -> bytes:
    """Everything it says until it ends; more than anybody would read is as good as no end."""
    assert process.stdout is not None
    said = bytearray()
    while chunk := await process.stdout.read(CHUNK_BYTES):
        said += chunk
        if len(said) > MAX_SAID_BYTES:
            break
    else:
        await process.wait()
    return bytes(said)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill what is left of its group, and see it out: asyncio reaps a process after its last output was read."""
    assert process.stdout is not None
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):  # a child in a session of its own still has our pipe: it ends with it
        async with asyncio.timeout(END_LIMIT_S):
            while await process.stdout.read(CHUNK_BYTES):
                pass
    await asyncio.wait_for(process.wait(), END_LIMIT_S)


def _facts(python: Path, said: bytes, exit_code: int) -> ToolchainFacts:
    lines = said.decode(errors="replace").splitlines()
    answer = next((line.removeprefix(_MARK) for line in reversed(lines) if line.startswith(_MARK)), None)
    evidence = "\n".join(lines[-5:])
    if answer is None:
        raise _refusal(python, lines, exit_code, evidence)
    try:
        facts = _FACTS.validate_json(answer)
    except ValidationError as error:
        raise ToolchainRefusedError(f"{python} answered something else than versions", evidence=evidence) from error
    if facts.farm != __version__:
        raise ToolchainRefusedError(
            f"{python} has farm {facts.farm}, the daemon is farm {__version__}",
            hint=pip_install(python=str(python)),
        )
    return facts


def _refusal(python: Path, lines: list[str], exit_code: int, evidence: str) -> ToolchainRefusedError:
    missing = next((found[1] for line in reversed(lines) if (found := _MISSING.match(line))), "")
    if missing:
        package = missing.partition(".")[0]
        return ToolchainRefusedError(
            f"{python} has no {package}", hint=pip_install("tvm", str(python)), evidence=evidence
        )
    last = next((line for line in reversed(lines) if line.strip()), "")
    ended = "was killed" if exit_code < 0 else "did not import TVM" if exit_code else "is no Python that works"
    return ToolchainRefusedError(
        f"{python} {ended}: {last.strip()[:200] or 'it said nothing'}",
        hint=f"try: {python} -c 'import tvm, farm.worker.zygote'",
        evidence=evidence,
    )
