"""What a changed configuration means for a daemon that runs: what holds at once, what waits for a restart. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace

from farm.config import FarmConfig

# Tables that are exchanged whole while the daemon serves. Of [tvm] and [store] only a part is: see `effective`.
LIVE_TABLES = (
    "adopt", "aliases", "lease", "quota", "user", "artifacts", "heat", "gates", "probe", "health", "battery", "quiesce",
    "recovery",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ReloadPlan:
    """What to do about a changed configuration. Names are keys as people write them: `heat.bench.start_c`."""

    effective: FarmConfig  # what holds from now on
    applied: tuple[str, ...]  # changed, and in force at once
    restart: tuple[str, ...]  # changed, and in force after a restart only


def plan(running: FarmConfig, told: FarmConfig) -> ReloadPlan:
    """Compare what holds now with what the file says."""
    new = effective(running, told)
    return ReloadPlan(new, tuple(changes(running, new)), tuple(changes(new, told)))


def effective(running: FarmConfig, told: FarmConfig) -> FarmConfig:
    """What `told` can change without a restart, the rest as it runs."""
    return replace(
        running,
        tvm=replace(running.tvm, advertise=told.tvm.advertise, external=told.tvm.external),
        store=replace(running.store, keep_days=told.store.keep_days, max_mb=told.store.max_mb),
        **{table: getattr(told, table) for table in LIVE_TABLES},
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
