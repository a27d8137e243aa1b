"""Jobs of kind `program`: a runtime's own benchmark program on a phone, whose times a worker judges as a bench's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from farm.jobs.executor import AttemptContext, Executor
from farm.kinds.execution import ExecutorParts, epoch_of, is_virtual, measured, quiet_lease
from farm.kinds.program.phone import ProgramHost, WantedProgram, install_programs, with_traces
from farm.kinds.program.spec import ProgramSpec, ProgramTask

WORKER = "farm.kinds.program.worker"


@dataclass(frozen=True, slots=True)
class ProgramExecutor(Executor):
    """Runs attempts of kind program."""

    parts: ExecutorParts

    async def run(self, context: AttemptContext) -> Mapping[str, Any]:
        """The worker's report, with the phone in its certificate.

        Raises:
            UserError: the program is not for the phone, failed, or printed no times.
            PhoneError: the phone failed.
            HostError: the worker died.
        """
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
