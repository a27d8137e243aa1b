"""A device's life told in tests, event by event."""

from __future__ import annotations

from farm.devices.lifecycle import messages as m
from farm.devices.lifecycle.lifecycle import Lifecycle
from farm.devices.lifecycle.recovery import RecoveryContext
from farm.devices.lifecycle.state import LifecycleState
from farm.model.device import Life

USABLE = m.Listed(m.LinkState.USABLE)


class Story:
    """A life driven by a script: answers carry the number of the work last asked for."""

    def __init__(self) -> None:
        self.machine = Lifecycle()
        self.now = 0.0
        self.context = RecoveryContext()
        self.last: tuple[m.Instruction, ...] = ()

    @property
    def state(self) -> LifecycleState:
        return self.machine.state

    @property
    def number(self) -> int:
        return self.state.generation

    def on_event(self, event: m.DeviceEvent) -> tuple[m.Instruction, ...]:
        self.last = self.machine.handle(event, self.now, self.context)
        return self.last

    def until_due_check(self) -> None:
        """It was ready for long enough; its golden kernels run."""
        self.on_event(m.PlainEvent.PROVISIONING_DUE)
        self.on_event(m.Provisioned(self.number, self.state.bundle))
        self.on_event(m.ServerStarted(self.number))
        assert self.state.life is Life.CHECKING

    def until_ready(self) -> Story:
        self.on_event(USABLE)
        self.on_event(m.Identified(self.number, adopted=True))
        self.on_event(m.Provisioned(self.number, "b" * 64))
        self.on_event(m.ServerStarted(self.number))
        self.on_event(m.CheckPassed(self.number))
        assert self.state.life is Life.READY
        return self
