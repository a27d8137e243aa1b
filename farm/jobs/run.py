"""Jobs of kind `run`: a model runs once on a phone, and its outputs are kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farm.jobs.executor import Running
from farm.jobs.phone_work import PhoneWork
from farm.jobs.specs import RunSpec
from farm.jobs.tasks import RunTask

WORKER = "farm.worker.run"


class RunExecutor:
    """Runs attempts of kind run."""

    def __init__(self, work: PhoneWork) -> None:
        self._work = work

    async def run(self, running: Running) -> Mapping[str, Any]:
        """The worker's report with what is known of the phone; arrays are in artifacts it names.

        Raises:
            UserError: the model, its inputs or its labels cannot be used, or the phone has no such target.
            PhoneError: the phone failed, or computed wrong numbers.
            HostError: the worker died.
        """
        spec = running.spec
        assert isinstance(spec, RunSpec)
        task = RunTask.of(spec, self._work.target(running, spec.target), self._work.cache(running))
        return {**await self._work.run(running, WORKER, task.to_wire()), "target": spec.target}
