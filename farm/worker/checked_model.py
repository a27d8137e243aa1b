"""One model in one session to the attempt's phone: built, sent, run once, its numbers judged."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from farm.compiler.build import Build
from farm.measure.conditions import Conditions
from farm.model.specs import ModelTask
from farm.worker.certificate import about_build, about_conditions
from farm.worker.channel import DaemonChannel
from farm.worker.session import FirstRun, PhoneSession, first_run, prepare, session_to_phone
from farm.worker.textures import checked_textures
from farm.worker.timing import Timer, timer_of


@dataclass(frozen=True, slots=True)
class CheckedModel:
    """A model on a phone that has run there once, with right numbers."""

    built: Build
    session: PhoneSession
    ran: FirstRun
    numerics: dict[str, Any]  # of a result: how its numbers differ from the reference

    def timer(self) -> Timer:
        """Times its runs by the phone's clock."""
        return timer_of(self.ran.machine, self.ran.device)


@contextlib.contextmanager
def checked_model(task: ModelTask[Any], daemon: DaemonChannel) -> Iterator[CheckedModel]:
    """A task's model in a session to its phone, until the end of the block. The task's spec has `inputs`.

    Raises:
        ModelError: the model or its inputs cannot be used, or TVM compiles the model wrongly.
        PhoneError: the phone failed, also in the block, or computed wrong numbers.
    """
    build = partial(prepare, task, daemon, inputs=task.spec.inputs, require_all_inputs=True)
    built = build()
    daemon.progress("opening a session")
    with session_to_phone(daemon) as session:
        built = checked_textures(built, session, daemon, build)
        ran = first_run(built, session, daemon.progress)
        yield CheckedModel(built, session, ran, built.judged(ran.outputs))


def circumstances(
    model: CheckedModel, task: ModelTask[Any], conditions: Conditions, started_at: datetime
) -> dict[str, Any]:
    """The fields of a certificate that say what was measured, when, and how the phone was meanwhile.

    Args:
        model: the measured one.
        task: the model's task.
        conditions: of the phone.
        started_at: the measurement; it has ended now.
    """
    return {
        **about_build(model.built, task),
        **about_conditions(conditions),
        "started_at": started_at.isoformat(),
        "seconds": (datetime.now(UTC) - started_at).total_seconds(),
    }
