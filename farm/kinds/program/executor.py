"""Jobs of kind `program`: a runtime's own benchmark program on a phone, whose times a worker judges as a bench's."""

from __future__ import annotations

import asyncio
import shutil
import signal
import stat
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from farm.adb.client import AdbClient
from farm.adb.push import SyncSession
from farm.adb.tools import pull
from farm.bundle.folder import read_files
from farm.bundle.model import platform_of
from farm.common.errors import Code, FarmError, PhoneError, ProtocolError, UserError
from farm.common.files import hash_file
from farm.common.limits import MAX_NUMBER
from farm.common.verbs import Count, verb
from farm.control.artifacts import ArtifactFolder
from farm.devices.server.program_files import ProgramFile, install_sets, set_folder, work_folder
from farm.jobs.executor import AttemptContext, Executor
from farm.kinds.execution import ExecutorParts, MeasuringHost, epoch_of, is_virtual, measured, quiet_lease
from farm.kinds.program import ProgramSpec, ProgramTask, ProgramUse
from farm.model.identity import DeviceIdentity
from farm.programs.description import (
    ExpectedNumbers,
    Places,
    ProgramDescription,
    WrittenOutputs,
    check_model,
    command_line,
    placement_line,
    report_line,
    with_settings,
)
from farm.programs.outputs import EVIDENCE_CHARS
from farm.programs.packing import UnpackedProgram, check_files, mode_of, unpacked

MAX_OUTPUT_BYTES = 128 << 10  # of one call and stream: both fit one answer to the worker, six bytes each as JSON
MAX_PLACEMENT_BYTES = 32 << 20  # of what tells where the work runs: a kilobyte for each node and run
MAX_NUMBERS_BYTES = 256 << 20  # of a file with computed numbers
KILL_LIMIT_S = 5.0
BY_HAND = "call it by hand: farm lease run --on SELECTOR -- adb shell"
SIGNALLED = 128  # a shell's exit code of a process that signal N ended is 128 + N
WORKER = "farm.kinds.program.worker"


@dataclass(frozen=True, slots=True)
class WantedProgram:
    """A program that a job wants on its phone."""

    program: str  # artifact
    model: str | None  # artifact
    name: str  # of the model file
    settings: Mapping[str, str]
    runs: int | None = None  # of one call; None: the description's


@dataclass(frozen=True, slots=True)
class InstalledProgram:
    """A program on the phone, ready to be called."""

    use: ProgramUse
    description: ProgramDescription
    places: Places


async def install_programs(
    parts: ExecutorParts, context: AttemptContext, wanted: Sequence[WantedProgram | None]
) -> list[InstalledProgram | None]:
    """Check the programs against the phone and push the files that it lacks; None for a side without a program."""
    sets: dict[str, list[ProgramFile]] = {}
    installed: list[InstalledProgram | None] = []
    with tempfile.TemporaryDirectory(prefix="farm-program-") as scratch:
        for side, each in enumerate(wanted):
            if each is None:
                installed.append(None)
                continue
            place = Path(scratch, str(side))
            await asyncio.to_thread(place.mkdir)
            installed.append(await _prepared(parts, context, each, place, side, sets))
        context.progress("pushing the program")
        sent = await install_sets(parts.client, context.view.serial, sets, len(wanted))
        context.log(f"pushed {sent:,} bytes of programs and models")
    return installed


async def _prepared(
    parts: ExecutorParts,
    context: AttemptContext,
    wanted: WantedProgram,
    place: Path,
    side: int,
    sets: dict[str, list[ProgramFile]],
) -> InstalledProgram:
    view, archive = context.view, await parts.artifacts.ensure(wanted.program)
    if (identity := view.identity) is None:
        raise PhoneError(f"{view.name} is not identified", Code.NO_IDENTITY)
    program, files = await asyncio.to_thread(_checked, archive, place, identity, view.name)
    description = program.description
    model_name = f"model{''.join(Path(wanted.name).suffixes[-1:])}" if wanted.model else ""
    check_model(description, wanted.name if wanted.model else "")
    settings = with_settings(description, wanted.settings)
    sets[wanted.program] = files
    model = ""
    if wanted.model:
        path = await parts.artifacts.ensure(wanted.model)
        sets[wanted.model] = [ProgramFile(path, model_name, 0o644, wanted.model)]
        model = f"{set_folder(wanted.model)}/{model_name}"
    reference = ""
    if program.reference is not None:
        reference = await asyncio.to_thread(_kept, parts.artifacts, program.reference)
    use = ProgramUse(
        description=description.to_wire(), sha256=wanted.program, runs=wanted.runs or description.runs,
        settings=settings, reference=reference,
    )  # fmt: skip
    places = Places(set_folder(wanted.program), model, work_folder(side))
    return InstalledProgram(use, description, places)


def _kept(artifacts: ArtifactFolder, file: Path) -> str:
    with artifacts.scratch() as scratch:
        scratch.grow(file.stat().st_size)
        shutil.copyfile(file, scratch.path)
        return artifacts.take(scratch)


def _checked(
    archive: Path, place: Path, identity: DeviceIdentity, phone: str
) -> tuple[UnpackedProgram, list[ProgramFile]]:
    program = unpacked(archive, place, identity.abi)
    files = read_files(program.folder, marks=False)
    check_files(program.description, files, identity.abi, platform_of(identity), phone)
    local = {file.name: program.folder / file.name for file in files}
    return program, [
        ProgramFile(local[file.name], file.name, mode_of(file), hash_file(local[file.name])) for file in files
    ]


@dataclass(frozen=True, slots=True)
class ProgramHost(MeasuringHost):
    """The daemon's side of the worker of a job with programs."""

    programs: Sequence[InstalledProgram | None]  # of side 0, and of side 1 in a comparison

    @verb("program.run")
    async def run(self, side: Count, runs: Count) -> Mapping[str, Any]:
        """Call the program once, with so many timed runs; what it printed."""
        program = self._program(side)
        await self.quiet.begin()
        if not 1 <= runs <= MAX_NUMBER:
            raise ProtocolError(f"a call of a program has 1 to {MAX_NUMBER} runs")
        called = replace(program, use=replace(program.use, runs=runs))
        stdout, stderr = await call_program(self.parts.client, self.context.view.serial, called)
        return {"stdout": stdout, "stderr": stderr}

    @verb("program.placement")
    async def read_placement(self, side: Count) -> Mapping[str, Any]:
        """An artifact with what the program's call for its placement printed, stderr behind stdout."""
        program = self._program(side)
        line = placement_line(program.description, program.places, 1, program.use.settings)
        if not line:
            raise ProtocolError("this program has no call for its placement")
        said = await _call_line(self.parts.client, self.context.view.serial, program, line, MAX_PLACEMENT_BYTES)
        return {"artifact": await asyncio.to_thread(lambda: self.parts.artifacts.add("\n".join(said).encode()))}

    def _program(self, side: int) -> InstalledProgram:
        program = self.programs[side] if side < len(self.programs) else None
        if program is None:
            raise ProtocolError("this attempt has no such program")
        return program

    @verb("program.numbers")
    async def read_numbers(self, side: Count) -> Mapping[str, Any]:
        """An artifact with the numbers that the program computed."""
        program = self._program(side)
        return await self._numbers(program, program.description.expected)

    @verb("program.written")
    async def read_outputs(self, side: Count) -> Mapping[str, Any]:
        """An artifact with the outputs that the program wrote."""
        program = self._program(side)
        return await self._numbers(program, program.description.written)

    async def _numbers(
        self, program: InstalledProgram, wanted: ExpectedNumbers | WrittenOutputs | None
    ) -> Mapping[str, Any]:
        if wanted is None:
            raise ProtocolError("this program is not expected to write numbers")
        client, serial, artifacts = self.parts.client, self.context.view.serial, self.parts.artifacts
        path = f"{program.places.work}/{wanted.file}"
        async with await SyncSession.open(client, serial) as session:
            mode = (await session.stat(path)).mode
        if not stat.S_ISREG(mode):  # a pipe would give nothing, for as long as it is read
            found = ": what is there is no plain file" if mode else ""
            raise UserError(
                f"{program.description.name} did not write {wanted.file}{found}", Code.PROGRAM_WRONG,
                hint="`file` is a name in {work}, which the command gives the program",
            )  # fmt: skip
        with artifacts.scratch() as scratch:
            try:
                await pull(client, serial, path, scratch.path, max_bytes=MAX_NUMBERS_BYTES, room=scratch.grow)
            except UserError as error:
                error.hint = "compare fewer numbers"
                raise
            return {"artifact": await asyncio.to_thread(artifacts.take, scratch, self.context.job.user)}


async def call_program(client: AdbClient, serial: str, program: InstalledProgram) -> tuple[str, str]:
    """Call a program once; what the command whose output counts printed, stdout and stderr."""
    description, called = program.description, (program.places, program.use.runs, program.use.settings)
    lines = command_line(description, *called), report_line(description, *called)
    said = "", ""
    for line in filter(None, lines):
        said = await _call_line(client, serial, program, line, MAX_OUTPUT_BYTES)
    return said


async def _call_line(
    client: AdbClient, serial: str, program: InstalledProgram, line: str, max_bytes: int
) -> tuple[str, str]:
    """What a line of a program printed, stdout and stderr, each of `max_bytes` at most."""
    description = program.description
    try:
        async with asyncio.timeout(description.limit_s):
            exit_code, stdout, stderr = await _called(client, serial, description.name, line, max_bytes)
    except BaseException as error:
        await _killed(client, serial, program.places.work)
        if not isinstance(error, TimeoutError):
            raise
        raise UserError(
            f"{description.name} did not end within {description.limit_s:g} s",
            Code.PROGRAM_HUNG,
            hint="fewer --runs, or a longer limit_s in its description",
        ) from error
    if exit_code != 0:
        raise failed(description.name, exit_code, stderr.strip() or stdout.strip())
    return stdout, stderr


async def _called(client: AdbClient, serial: str, name: str, line: str, max_bytes: int) -> tuple[int, str, str]:
    stdout, stderr = _BoundedOutput(name, max_bytes), _BoundedOutput(name, max_bytes)
    async with await client.open_shell(serial, line, on_stderr=stderr.take) as stream:
        await stream.close_stdin()
        while chunk := await stream.read():
            await stdout.take(chunk)
    assert stream.exit_code is not None  # read() ends in no other way
    return stream.exit_code, stdout.text, stderr.text


class _BoundedOutput:
    """What a program prints on one stream, up to a limit."""

    def __init__(self, name: str, max_bytes: int) -> None:
        self._name, self._max_bytes = name, max_bytes
        self._data = bytearray()

    @property
    def text(self) -> str:
        return self._data.decode("utf-8", "replace").replace("\r\n", "\n")

    async def take(self, data: bytes) -> None:
        self._data += data
        if len(self._data) > self._max_bytes:
            raise UserError(
                f"{self._name} printed more than {self._max_bytes >> 10} KiB and was ended", Code.PROGRAM_UNREADABLE,
                hint="an option that makes it print less", evidence=self.text[:EVIDENCE_CHARS],
            )  # fmt: skip


def failed(name: str, exit_code: int, said: str) -> UserError:
    """The error of a call that ended with this exit code of a shell; `said`: what it printed. Pure."""
    evidence = said[-EVIDENCE_CHARS:]
    if exit_code > SIGNALLED:
        with suppress(ValueError):
            word = signal.Signals(exit_code - SIGNALLED).name
            hint = "Android ends processes that need too much memory" if word == "SIGKILL" else BY_HAND
            return UserError(f"{name} was ended by {word}", Code.PROGRAM_FAILED, hint=hint, evidence=evidence)
    last = evidence.splitlines()[-1] if evidence else "it printed nothing"
    return UserError(
        f"{name} ended with exit code {exit_code}: {last[:200]}", Code.PROGRAM_FAILED,
        hint=BY_HAND, evidence=evidence,
    )  # fmt: skip


async def _killed(client: AdbClient, serial: str, work: str) -> None:
    """End the program that the last call started; a phone that does not answer is cleaned later."""
    with suppress(FarmError):
        await client.shell(serial, f"kill -9 $(cat {work}/pid) 2>/dev/null; exit 0", timeout_s=KILL_LIMIT_S)


async def with_traces(
    parts: ExecutorParts, context: AttemptContext, work: Callable[[], Awaitable[Mapping[str, Any]]]
) -> Mapping[str, Any]:
    """Do work that leaves traces: the phone is noted before it, and tidied before the next user gets the phone."""
    context.progress("noting what is on the phone")
    await parts.fleet.note_before_lease(context.lease.device)
    parts.leasing.changed_phone(context.lease.id, changed=True)
    try:
        return await work()
    finally:  # the end of quiescing has marked the phone as unchanged
        parts.leasing.changed_phone(context.lease.id, changed=True)


@dataclass(frozen=True, slots=True)
class ProgramExecutor(Executor):
    """Runs attempts of kind program."""

    parts: ExecutorParts

    async def run(self, context: AttemptContext) -> Mapping[str, Any]:
        """The worker's report, with the phone in its certificate."""
        spec, parts = context.spec, self.parts
        assert isinstance(spec, ProgramSpec)
        wanted = WantedProgram(spec.program, spec.model, spec.name, spec.settings, spec.runs)
        return await with_traces(parts, context, lambda: self._measured(context, spec, wanted))

    async def _measured(self, context: AttemptContext, spec: ProgramSpec, wanted: WantedProgram) -> Mapping[str, Any]:
        parts, work = self.parts, self.parts.work
        (program,) = await install_programs(parts, context, [wanted])
        assert program is not None
        task = ProgramTask(
            spec=spec,
            use=program.use,
            target=work.target(context, "cpu"),
            cache=work.cache(context),
            virtual=is_virtual(context.view),
            nominals=await parts.nominals(context.view.name, epoch_of(context.view), context.job.user),
        )
        host = ProgramHost(context, parts, quiet_lease(parts, context), [program])
        return await measured(work, context, WORKER, asdict(task), host)
