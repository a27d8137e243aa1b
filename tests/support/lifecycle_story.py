"""A device's life told in tests, event by event."""

from farm.devices.lifecycle import messages as m
from farm.devices.lifecycle.lifecycle import Lifecycle
from farm.devices.lifecycle.recovery import RecoveryContext
from farm.model.device import Life

USABLE = m.Listed(m.LinkState.USABLE)
GONE = m.PlainEvent.UNLISTED


class Story:
    """A life driven by a script, from `life` on: answers carry the number of the work last asked for."""

    def __init__(self, life=Life.GONE, adopted=True, **context):
        self.machine = Lifecycle()
        self.now = 0.0
        self.context = RecoveryContext()
        self.last = ()
        if life is not Life.GONE:
            self.on(USABLE)
            self.until(life, adopted=adopted)
        self.context = RecoveryContext(**context)

    @property
    def state(self):
        return self.machine.state

    @property
    def life(self):
        return self.state.life

    @property
    def number(self):
        return self.state.generation

    def on(self, *events):
        """Each event, one after the other; returns what the last asks for."""
        for event in events:
            self.last = self.machine.handle(event, self.now, self.context)
        return self.last

    def answers(self, answer, *values, **fields):
        """The work that was asked for last ends with that."""
        return self.on(answer(self.number, *values, **fields))

    def fails(self, reason="it failed", fault=None, hint=""):
        """The work that was asked for last fails."""
        return self.answers(m.WorkFailed, reason, hint, fault)

    def waits(self):
        """The time that it was to wait is over."""
        return self.answers(m.WaitEnded)

    def dies(self, reason="signal 11", **fields):
        """The server that it follows dies."""
        return self.on(m.ServerDied(self.state.follow, reason, **fields))

    def until(self, life, adopted=True, bundle="b" * 64):
        """All work ends well, up to that life; returns what is asked for then."""
        answers = {
            Life.IDENTIFYING: lambda: self.answers(m.Identified, adopted=adopted),
            Life.PROVISIONING: lambda: self.answers(m.Provisioned, bundle),
            Life.STARTING: lambda: self.answers(m.ServerStarted),
            Life.CHECKING: lambda: self.answers(m.CheckPassed),
        }
        while self.life is not life:
            answers[self.life]()
        return self.last

    def until_due_check(self):
        """It was ready for long enough; its golden kernels run."""
        self.on(m.PlainEvent.PROVISIONING_DUE)
        return self.until(Life.CHECKING, bundle=self.state.bundle)

    @property
    def under_way(self):
        """The action of recovery that is under way."""
        taken = self.state.progress.under_way
        return taken and taken.action

    @property
    def ended(self):
        """The action of recovery that ended last, and how."""
        last = self.state.progress.last
        return last.taken.action, last.outcome
