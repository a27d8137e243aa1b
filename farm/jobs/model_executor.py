"""Jobs that take a model to a phone (`bench`, `run`): the worker gets the spec's options, a target and a cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farm.jobs.executor import Running
from farm.jobs.phone_work import PhoneWork
from farm.jobs.specs import ModelSpec
from farm.jobs.tasks import ModelTask


class ModelExecutor:
    """Runs attempts of one kind."""

    def __init__(self, work: PhoneWork, worker: str, task: type[ModelTask]) -> None:
        """`worker`: the module whose `main` does it. `task`: what it is told."""
        self._work = work
        self._worker = worker
        self._task = task

    async def run(self, running: Running) -> Mapping[str, Any]:
        """The worker's report with what is known of the phone; arrays are in artifacts it names.

        Raises:
            UserError: the model, its inputs or its labels cannot be used, or the phone has no such target.
            PhoneError: the phone failed, or computed wrong numbers.
            HostError: the worker died.
        """
        spec = running.spec
        assert isinstance(spec, ModelSpec)
        task = self._task.of(spec, self._work.target(running, spec.target), self._work.cache(running))
        return {**await self._work.run(running, self._worker, task.to_wire()), "target": spec.target}
