"""A device's life told in tests, event by event."""

from __future__ import annotations

from farm.core import lifecycle_messages as m
from farm.core.device import Life
from farm.core.lifecycle import Lifecycle
from farm.core.lifecycle_state import DeviceState
from farm.core.recovery import Around

USABLE = m.Listed(m.Link.USABLE)


class Story:
    """A life driven by a script: answers carry the number of the work last asked for."""

    def __init__(self) -> None:
        self.machine = Lifecycle()
        self.now = 0.0
        self.around = Around()
        self.last: tuple[m.Instruction, ...] = ()

    @property
    def state(self) -> DeviceState:
        return self.machine.state

    @property
    def number(self) -> int:
        return self.state.generation

    def tell(self, event: m.Event) -> tuple[m.Instruction, ...]:
        self.last = self.machine.handle(event, self.now, self.around)
        return self.last

    def until_due_check(self) -> None:
        """It was ready for long enough; its golden kernels run."""
        self.tell(m.CheckDue())
        self.tell(m.Provisioned(self.number, self.state.bundle))
        self.tell(m.ServerStarted(self.number))
        assert self.state.life is Life.CHECKING

    def until_ready(self) -> Story:
        self.tell(USABLE)
        self.tell(m.Identified(self.number, adopted=True))
        self.tell(m.Provisioned(self.number, "b" * 64))
        self.tell(m.ServerStarted(self.number))
        self.tell(m.CheckPassed(self.number))
        assert self.state.life is Life.READY
        return self
