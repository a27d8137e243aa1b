"""A device's life told in tests, event by event."""

from dataclasses import MISSING, fields, is_dataclass
from enum import Enum

from farm.devices.lifecycle import messages as m
from farm.devices.lifecycle.lifecycle import Lifecycle
from farm.devices.lifecycle.recovery import RecoveryContext
from farm.model.device import Life

USABLE = m.Listed(m.LinkState.USABLE)
GONE = m.PlainEvent.UNLISTED


class Story:
    """A life driven by a script, from `life` on: answers carry the number of the work last asked for.

    `told` has a line for each event: what it changed in the state, and what is asked for then.
    """

    def __init__(self, life=Life.GONE, adopted=True, **context):
        self.machine = Lifecycle()
        self.now = 0.0
        self.context = RecoveryContext()
        self.last, self.told = (), []
        if life is not Life.GONE:
            self.on(USABLE)
            self.until(life, adopted=adopted)
        self.context, self.told = RecoveryContext(**context), []

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
            before = self.state
            self.last = self.machine.handle(event, self.now, self.context)
            asked = ", ".join(map(short, self.last))
            self.told.append(f"{short(event)}: {changes(before, self.state)}{asked and f' => {asked}'}")
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

    def until(self, life, adopted=True, bundle="b1"):
        """All work ends well, up to that life; returns what is asked for then."""
        answers = {
            Life.IDENTIFYING: lambda: self.answers(m.Identified, adopted=adopted),
            Life.PROVISIONING: lambda: self.answers(m.Provisioned, bundle),
            Life.STARTING: lambda: self.answers(m.ServerStarted),
            Life.CHECKING: lambda: self.answers(m.CheckPassed),
        }
        if life is None:
            return answers[self.life]()
        while self.life is not life:
            answers[self.life]()
        return self.last

    def step(self, **options):
        """The work that was asked for last ends well."""
        return self.until(None, **options)

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


def short(value):
    """A record without what it has by default, of texts the first line."""
    if is_dataclass(value):
        said = {each.name: getattr(value, each.name) for each in fields(value) if not _usual(value, each)}
        return f"{type(value).__name__}({', '.join(f'{name}={short(each)}' for name, each in said.items())})"
    if isinstance(value, tuple):
        return f"({', '.join(map(short, value))})"
    if isinstance(value, Enum | str):
        first, *more = str(value).split("\n")
        return first + (f" (+{len(more)} lines)" if more else "")
    return repr(value)


def _usual(value, field):
    usual = field.default if field.default_factory is MISSING else field.default_factory()
    return getattr(value, field.name) == usual


def changes(before, after):
    """The fields of a state that are others than before."""
    new = [each.name for each in fields(after) if getattr(before, each.name) != getattr(after, each.name)]
    said = [f"{name} {short(getattr(after, name)) or 'none'}" for name in new]
    if new and after.reason.startswith("quarantined: "):
        said.append(after.reason)
    return ", ".join(said) or "nothing"
