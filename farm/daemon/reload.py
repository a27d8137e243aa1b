"""Reads the configuration again while the daemon serves: on SIGHUP and on `farm reload`. No session is cut."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from farm.common.errors import FarmError
from farm.common.events import EventLog
from farm.common.systemd import Notifier
from farm.common.tasks import BackgroundTasks
from farm.common.verbs import verb
from farm.config import FarmConfig
from farm.control.audit import OK
from farm.control.callers import Role
from farm.control.server import ControlCall
from farm.control.verbs import VerbGroup, json_of
from farm.daemon.shared_config import LoadConfig, SharedConfig

# Tables that are exchanged whole while the daemon serves. Of [tvm], [power], [store] only a part: see `effective`.
LIVE_TABLES = (
    "adopt", "aliases", "lease", "quota", "user", "artifacts", "heat", "gates", "probe", "health", "battery", "quiesce",
    "recovery",
)  # fmt: skip
HEAD_READS = ("quota", "user", "store")


@dataclass(frozen=True, slots=True)
class ReloadPlan:
    """The effects of a changed configuration. Names are keys as people write them: `heat.bench.start_c`."""

    effective: FarmConfig  # what holds from now on
    applied: tuple[str, ...]  # changed, and in force at once
    restart: tuple[str, ...]  # changed, and in force after a restart only


def plan(running: FarmConfig, loaded: FarmConfig) -> ReloadPlan:
    """Compare the configuration in force with the file."""
    new = effective(running, loaded)
    return ReloadPlan(new, tuple(changes(running, new)), tuple(changes(new, loaded)))


def for_head(decided: ReloadPlan, lab_keys: Sequence[str] = ()) -> list[str]:
    """Changes that this daemon has read, and that a head apart must read too, as one note; it follows `lab_keys`."""
    own = tuple(f"{table}." for table in HEAD_READS if table not in lab_keys)
    names = [name for name in decided.applied if name.startswith(own)]
    if not names or not decided.effective.lab.head_apart:
        return []
    return [f"{', '.join(names)}: the head goes by its own host's file; there: systemctl reload farm-head"]


def effective(running: FarmConfig, loaded: FarmConfig) -> FarmConfig:
    """`loaded` where a change needs no restart, `running` elsewhere."""
    return replace(
        running,
        tvm=replace(running.tvm, advertise=loaded.tvm.advertise, external=loaded.tvm.external),
        power=replace(running.power, meter=loaded.power.meter),
        store=replace(running.store, keep_days=loaded.store.keep_days, max_mb=loaded.store.max_mb),
        **{table: getattr(loaded, table) for table in LIVE_TABLES},
    )


def changes(before: object, after: object, name: str = "") -> Iterator[str]:
    """Names of the values that differ, sorted by nothing but their place in the configuration."""
    if is_dataclass(before) and type(before) is type(after):
        for each in fields(before):
            yield from changes(getattr(before, each.name), getattr(after, each.name), _join(name, each.name))
    elif isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in sorted({*before, *after}, key=str):
            if key not in before or key not in after:
                yield _join(name, str(key))
            else:
                yield from changes(before[key], after[key], _join(name, str(key)))
    elif before != after:
        yield name


def _join(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key


BY_SIGNAL = "SIGHUP"
BY_LAB = "the lab"
FAILED = "failed"  # the audit log's outcome where an error has no code

log = logging.getLogger("farm")


class Reloader(VerbGroup):
    """Passes a new configuration to each of `parts`, in order, on the event loop.

    If one of them refuses it, those before it get the old one back.
    """

    def __init__(
        self,
        config: FarmConfig,
        load: LoadConfig,
        lab: SharedConfig,
        events: EventLog,
        notifier: Notifier,
        on_signal_outcome: Callable[[str], None] = lambda _: None,
    ) -> None:
        """The parts that a reload needs.

        Args:
            config: what holds now.
            load: reads this host's configuration.
            lab: the lab's.
            events: gets config.reloaded and config.refused.
            notifier: the way to the service manager.
            on_signal_outcome: gets the outcome of each reload by a signal (the control server records the verb's).
        """
        self.config = config
        self._on_signal_outcome = on_signal_outcome
        self.parts: list[Callable[[FarmConfig], None]] = []
        self.notes: Callable[[FarmConfig], list[str]] = lambda _: []  # names in a configuration that nothing has
        self._load = load
        self._lab = lab
        self._events = events
        self._notifier = notifier
        self._one = asyncio.Lock()
        self._signalled = BackgroundTasks()

    def signalled(self) -> None:
        """SIGHUP came: reload in the background; an error becomes an event and a line in the log."""
        self._signalled.spawn(self._by_signal(), "reload")

    async def reload(self, who: str) -> ReloadPlan:
        """Read everything again, apply the changes that can be, name those that need a restart.

        Args:
            who: the user, for the event.

        Raises:
            ConfigError: there is a mistake in it; the old configuration holds on.
            Exception: a mistake of farm's; the old one holds on, too.
        """
        async with self._one:
            self._notifier.reloading()
            try:
                decided = plan(self.config, await self._lab.load(self._load))
                self._put_in_force(decided.effective)
            except FarmError as error:
                self._events.publish("config.refused", "daemon", by=who, reason=error.message, hint=error.hint)
                raise
            except Exception as error:
                reason = f"a mistake in farm: {type(error).__name__}"
                self._events.publish(
                    "config.refused", "daemon", by=who, reason=reason, hint="the daemon's log has more"
                )
                raise
            finally:
                self._notifier.ready("serving")
            self.config = decided.effective
            self._events.publish(
                "config.reloaded", "daemon", by=who, applied=list(decided.applied), restart=list(decided.restart)
            )
            return decided

    def _put_in_force(self, config: FarmConfig) -> None:
        for count, part in enumerate(self.parts, start=1):
            try:
                part(config)
            except Exception:
                for changed in self.parts[:count]:
                    with contextlib.suppress(Exception):  # the first error is raised
                        changed(self.config)
                raise

    @verb("reload", Role.OPERATOR)
    async def _verb(self, call: ControlCall) -> Mapping[str, Any]:
        """Read the configuration again -> {applied, restart, notes}: names of changed keys, names that nothing has."""
        return self._answer(await self.reload(call.caller.user))

    @verb("lab.config", Role.USER)
    async def _lab_config(self) -> Mapping[str, Any]:
        """The lab's configuration -> {text, by, at}: TOML, who set it and when."""
        return json_of(await self._lab.record(), "text", "by", "at")

    @verb("lab.set_config", Role.OPERATOR)
    async def _set_lab_config(self, call: ControlCall, text: str) -> Mapping[str, Any]:
        """Set the lab's configuration and read this host's again -> as `reload`. Other hosts follow in seconds."""
        await self._lab.set(text, call.caller.user)
        return self._answer(await self.reload(call.caller.user))

    def _answer(self, decided: ReloadPlan) -> Mapping[str, Any]:
        keys = self._lab.keys
        of_lab = [f"{', '.join(keys)}: set for all hosts, not by this host's file (farm lab config)"] if keys else []
        notes = [*self.notes(decided.effective), *of_lab, *for_head(decided, keys)]
        return {"applied": list(decided.applied), "restart": list(decided.restart), "notes": notes}

    async def follow_lab(self) -> None:
        """Read everything again if another host has set the lab's configuration.

        Raises:
            ConfigError: there is a mistake in this host's file.
        """
        if await self._lab.changed():
            await self.reload(BY_LAB)

    async def _by_signal(self) -> None:
        try:
            await self.reload(BY_SIGNAL)
            self._on_signal_outcome(OK)
        except FarmError as error:
            self._on_signal_outcome(error.code)
            log.error("the configuration is refused, the old one holds on: %s", error)  # noqa: TRY400 (a mistake in a file is no traceback)
        except Exception:
            self._on_signal_outcome(FAILED)
            log.exception("the configuration could not be read again, the old one holds on")
