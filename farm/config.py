"""What the farm is told: one frozen object, from TOML < environment < flags.

The environment spells a key as `FARM_` plus its path joined by `__`: `FARM_TVM__PORT=9200` is `[tvm] port = 9200`.
Unknown keys are refused with the nearest known one; nothing is guessed.
"""

from __future__ import annotations

import difflib
import ipaddress
import json
import math
import os
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args, get_type_hints

from farm.config_file import NotReadableError, read_toml
from farm.core.adoption import AdoptionRule, AdoptRule
from farm.core.battery_care import BatteryConfig
from farm.core.config_limits import mistakes
from farm.core.control_policy import ControlConfig
from farm.core.control_policy import mistake as control_mistake
from farm.core.errors import UserError
from farm.core.field_errors import field_error
from farm.core.folders import default_runtime_dir, default_state_dir
from farm.core.health_rules import HealthConfig
from farm.core.heat_policy import HeatConfig
from farm.core.limits import MAX_PRIORITY
from farm.core.power_policy import PowerConfig, UsbConfig
from farm.core.quiesce import QuiesceConfig
from farm.core.recovery import RecoveryConfig
from farm.core.requests import LeaseClass
from farm.core.sensors import ProbeConfig
from farm.core.web_policy import WebConfig
from farm.core.web_policy import mistake as web_mistake

ENV_PREFIX = "FARM_"
# Variables with our prefix that are not configuration keys: where the file and the daemon are.
ENV_RESERVED = frozenset({"FARM_CONFIG", "FARM_SOCKET", "FARM_DAEMON", "FARM_KEY"})
VALUES_HINT = "texts stand in quotes; numbers, true and false do not"
DEFAULT_TVM_PORT = 9190  # stock trackers default to 9190; `query_rpc_tracker` needs no flag


class ConfigError(UserError):
    """The configuration has a mistake."""

    code = "config"


@dataclass(frozen=True, slots=True)
class ExternalConfig:
    """Servers that register themselves with the tracker: who may, from where."""

    allow: tuple[str, ...] = ("127.0.0.0/8", "::1/128")  # CIDRs
    custom_addresses: tuple[str, ...] = ()  # CIDRs or names they may announce in place of their own (--custom-addr)
    join: tuple[str, ...] = ()  # farm aliases they may share


@dataclass(frozen=True, slots=True)
class TvmConfig:
    """The TVM door."""

    host: str = "127.0.0.1"  # the address of the one port: tracker and sessions
    port: int = DEFAULT_TVM_PORT  # 0: the kernel chooses
    gate: str = ""  # socket of a running `farm gate`, which then has the port; empty: a gate inside the daemon
    advertise: Mapping[str, str] = field(default_factory=dict)  # client CIDR -> address told to it
    external: ExternalConfig = ExternalConfig()


@dataclass(frozen=True, slots=True)
class AdbConfig:
    """The adb server that owns the phones."""

    socket: str = ""  # adb's own spec, "tcp:127.0.0.1:5038"; empty: a unix socket in the runtime folder
    binary: str = ""  # empty: PATH, then the one inside adbutils
    manage: bool = True  # start it, and start it again when it dies
    service: bool = False  # farm-adb.service runs it: one that hangs is ended here and started again there
    usb: bool = True  # whether it opens phones on USB; false: only those over the network


@dataclass(frozen=True, slots=True)
class LeaseConfig:
    """How long the TVM door waits for clients (DESIGN §5)."""

    unused_s: float = 5.0  # a granted key that nobody dials
    idle_s: float = 600.0  # a session without a byte


@dataclass(frozen=True, slots=True)
class ToolchainConfig:
    """A host interpreter with a TVM, and the bundle built from the same TVM (empty: any for the phone's ABI)."""

    python: str = sys.executable  # an interpreter with TVM and this very farm
    bundle: str = ""  # built from the same TVM; empty: the one added last for the phone's ABI


@dataclass(frozen=True, slots=True)
class UserConfig:
    """What one user may have at once, and how much they count; `[quota]` is for everybody who has no table."""

    weight: float = 1.0  # share of device-seconds beside other users of the same priority
    devices: int = 0  # phones held at once through both doors; 0: no limit
    jobs: int = 100_000  # jobs not ended yet
    priority: int = 5  # highest they may ask for (0 .. 10)


@dataclass(frozen=True, slots=True)
class JobsConfig:
    """How jobs run on this host."""

    workers: int = 8  # attempts at once: each compiles on one core and holds some 100 MB of its own
    user: str = "farm-job"  # whom workers become when the daemon is root and there is such a user


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """What is remembered, where and how long."""

    url: str = ""  # SQLAlchemy's form, postgresql+psycopg://...; empty: farm.db in the state folder
    keep_days: float = 90.0  # ended jobs with their logs, and events
    max_mb: int = 2_000  # of the database; the oldest ended jobs go first


@dataclass(frozen=True, slots=True)
class ArtifactsConfig:
    """Models, inputs and results on this host's disk."""

    budget_gb: float = 50.0  # the longest unused go first; never those of jobs that have not ended
    keep_days: float = 30.0  # without use


@dataclass(frozen=True, slots=True)
class GatesConfig:
    """What requests of stock TVM clients are for: key -> class of lease; interactive where nothing is said."""

    tvm_class: Mapping[str, LeaseClass] = field(default_factory=dict)  # key = "interactive", "bench" or "tune"


@dataclass(frozen=True, slots=True)
class FarmConfig:
    """Everything. Paths are absolute once loaded."""

    state_dir: Path = Path()  # what must survive; /var/lib/farm for root, else ~/.local/state/farm
    runtime_dir: Path = Path()  # sockets; /run/farm for root, else $XDG_RUNTIME_DIR/farm
    tvm: TvmConfig = TvmConfig()
    adb: AdbConfig = AdbConfig()
    adopt: tuple[AdoptRule, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)  # stock TVM key -> selector
    lease: LeaseConfig = LeaseConfig()
    toolchain: Mapping[str, ToolchainConfig] = field(default_factory=lambda: {"default": ToolchainConfig()})
    jobs: JobsConfig = JobsConfig()
    quota: UserConfig = UserConfig()
    user: Mapping[str, UserConfig] = field(default_factory=dict)  # by user name (or source address)
    store: StoreConfig = StoreConfig()
    artifacts: ArtifactsConfig = ArtifactsConfig()
    heat: HeatConfig = field(default_factory=HeatConfig)
    gates: GatesConfig = GatesConfig()
    probe: ProbeConfig = field(default_factory=ProbeConfig)
    health: HealthConfig = field(default_factory=HealthConfig)
    battery: BatteryConfig = field(default_factory=BatteryConfig)
    quiesce: QuiesceConfig = field(default_factory=QuiesceConfig)
    power: PowerConfig = field(default_factory=PowerConfig)
    usb: UsbConfig = field(default_factory=UsbConfig)
    recovery: RecoveryConfig = field(default_factory=RecoveryConfig)
    web: WebConfig = field(default_factory=WebConfig)
    control: ControlConfig = field(default_factory=ControlConfig)

    @property
    def control_socket(self) -> Path:
        """Where the job door listens."""
        return self.runtime_dir / "control.sock"

    @property
    def adb_socket(self) -> str:
        """The adb server's address in adb's own words."""
        return self.adb.socket or f"localfilesystem:{self.runtime_dir / 'adb.sock'}"


def load(
    path: Path | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    flags: Mapping[str, object] | None = None,
) -> FarmConfig:
    """Read the configuration.

    Args:
        path: a TOML file; None means `$FARM_CONFIG`, then /etc/farm/farm.toml if it exists.
        environ: the environment.
        flags: dotted keys from the command line (`{"tvm.port": 9200}`); None values are skipped.

    Raises:
        ConfigError: the file cannot be read, a key is unknown, or a value has the wrong type.
    """
    tree, origin = _read_file(path, environ)
    elsewhere: dict[str, str] = {}  # keys that are not the file's, and whose they are
    for name, value in environ.items():
        if name.startswith(ENV_PREFIX) and name not in ENV_RESERVED:
            keys = name.removeprefix(ENV_PREFIX).lower().split("__")
            elsewhere[".".join(keys)] = f"environment {name}"
            _put(tree, keys, _scalar(value), f"environment {name}")
    for key, flag in (flags or {}).items():
        if flag is not None:
            elsewhere[key] = f"option {key}"
            _put(tree, key.split("."), flag, f"option {key}")
    try:
        _refuse_unknown(FarmConfig, tree, origin, ())
        return _with_paths(_validate(tree, origin))
    except ConfigError as error:
        said = error.message.removeprefix(f"{origin}: ")
        for key, whose in elsewhere.items():
            if said.startswith((f"{key}:", f"{key} ", f"{key}.", f"unknown key {key!r}")):
                hint = "" if error.hint == VALUES_HINT else error.hint
                raise ConfigError(f"{whose}: {said}", hint=hint) from error
        raise
    except (ValueError, OverflowError, RecursionError) as error:  # numbers that Python does not even print
        raise ConfigError(f"{origin}: a value cannot be meant: {error}"[:500]) from error


def _read_file(path: Path | None, environ: Mapping[str, str]) -> tuple[dict[str, Any], str]:
    named = path or (Path(environ["FARM_CONFIG"]) if environ.get("FARM_CONFIG") else None)
    chosen = named or Path("/etc/farm/farm.toml")
    if named is None and not chosen.exists():
        return {}, "defaults"
    try:
        return read_toml(chosen), str(chosen)
    except OSError as error:
        raise ConfigError(f"cannot read {chosen}: {error.strerror}", hint="check --config or FARM_CONFIG") from error
    except NotReadableError as error:
        hint = VALUES_HINT if isinstance(error.__cause__, tomllib.TOMLDecodeError) else "check --config or FARM_CONFIG"
        raise ConfigError(f"cannot read {chosen}: {error}", hint=hint) from error


def _put(tree: dict[str, Any], path: Sequence[str], value: object, origin: str) -> None:
    for part in path[:-1]:
        tree = tree.setdefault(part, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"{origin}: {part} is a value, not a table")
    tree[path[-1]] = value


def _scalar(text: str) -> object:
    """Environment values are JSON where they parse as it (`9200`, `true`, `["a"]`), else plain text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _refuse_unknown(cls: type[Any], tree: Mapping[str, Any], origin: str, path: tuple[str, ...]) -> None:
    hints = get_type_hints(cls)
    known = {f.name for f in fields(cls)}
    for key, value in tree.items():
        if key not in known:
            near = _in_tables(hints, key) or difflib.get_close_matches(key, known, n=1)
            where = ".".join((*path, key))
            hint = (
                f"did you mean {'.'.join((*path, near[0]))!r}?" if near else f"known keys: {', '.join(sorted(known))}"
            )
            raise ConfigError(f"{origin}: unknown key {where!r}", hint=hint)
        for nested, item_path, item in _tables(hints[key], value, (*path, key)):
            _refuse_unknown(nested, item, origin, item_path)


def _in_tables(hints: Mapping[str, Any], key: str) -> list[str]:
    """Where `key` would be known, one table further down (`tvm.port` for a stray `port`)."""
    nested = ((table, hint) for table, hint in hints.items() if isinstance(hint, type) and is_dataclass(hint))
    return [f"{table}.{key}" for table, hint in nested if key in {f.name for f in fields(hint)}]


def _tables(
    hint: object, value: object, path: tuple[str, ...]
) -> Iterator[tuple[type[Any], tuple[str, ...], Mapping[str, Any]]]:
    """The nested tables in `value` that a dataclass describes, each with its path."""
    nested = next((arg for arg in (hint, *get_args(hint)) if isinstance(arg, type) and is_dataclass(arg)), None)
    if nested is None:
        return
    if nested is hint:
        entries: Iterable[tuple[tuple[str, ...], object]] = [(path, value)]
    elif isinstance(value, dict):
        entries = [((*path, str(name)), item) for name, item in value.items()]
    else:
        entries = [((*path, str(i)), item) for i, item in enumerate(value if isinstance(value, list) else ())]
    yield from ((nested, where, item) for where, item in entries if isinstance(item, dict))


def _validate(tree: Mapping[str, Any], origin: str) -> FarmConfig:
    from pydantic import TypeAdapter, ValidationError

    try:
        config = TypeAdapter(FarmConfig).validate_python(tree)
    except ValidationError as error:
        errors = error.errors()
        where, said, hint = field_error(errors)
        of_its_kind = errors[0]["type"].endswith(("_type", "_parsing"))
        raise ConfigError(f"{origin}: {where} {said}", hint=hint or (VALUES_HINT if of_its_kind else "")) from error
    if not 0 <= config.tvm.port <= 65535:
        raise ConfigError(
            f"{origin}: tvm.port: {config.tvm.port} is not a port", hint="0 to 65535; 0 lets the kernel choose"
        )
    for name, seconds in (("unused_s", config.lease.unused_s), ("idle_s", config.lease.idle_s)):
        if not 0 < seconds < math.inf:
            raise ConfigError(f"{origin}: lease.{name}: {seconds} is not a time to wait", hint="seconds, more than 0")
    _check_amounts(config, origin)
    for cidr in (*config.tvm.advertise, *config.tvm.external.allow):
        try:
            ipaddress.ip_network(cidr)
        except ValueError as error:
            raise ConfigError(f"{origin}: {error}", hint="write a network, e.g. 10.0.0.0/8") from error
    _check_selectors(config, origin)
    if "default" not in config.toolchain:
        raise ConfigError(f"{origin}: [toolchain.default] is missing", hint="one toolchain must be named default")
    return config


def _check_amounts(config: FarmConfig, origin: str) -> None:
    for where, user in (("quota", config.quota), *((f"user.{name}", user) for name, user in config.user.items())):
        if not 0 < user.weight < math.inf:
            raise ConfigError(f"{origin}: {where}.weight: {user.weight} is no share", hint="a number above 0")
        if min(user.devices, user.jobs) < 0 or not 0 <= user.priority <= MAX_PRIORITY:
            raise ConfigError(
                f"{origin}: {where}: devices and jobs count from 0, priority goes from 0 to {MAX_PRIORITY}"
            )
    amounts = {
        "jobs.workers": config.jobs.workers, "store.keep_days": config.store.keep_days,
        "store.max_mb": config.store.max_mb, "artifacts.budget_gb": config.artifacts.budget_gb,
        "artifacts.keep_days": config.artifacts.keep_days,
    }  # fmt: skip
    for name, amount in amounts.items():
        if not 0 < amount < math.inf:
            raise ConfigError(f"{origin}: {name}: {amount} is no amount", hint="a number above 0")
    if min(config.recovery.per_day().values()) < 0:
        raise ConfigError(f"{origin}: recovery: budgets count from 0")
    if (wrong := web_mistake(config.web) or control_mistake(config.control)) is not None:
        raise ConfigError(f"{origin}: {wrong[0]}", hint=wrong[1])
    _check_health(config.health, origin)
    if not 0 <= config.battery.low_percent < config.battery.high_percent <= 100:
        raise ConfigError(f"{origin}: battery: low_percent must be below high_percent", hint="0 to 100")
    for what, way_out in mistakes(config.heat, config.probe, config.health, config.quiesce, config.power, config.usb):
        raise ConfigError(f"{origin}: {what}", hint=way_out)


def _check_health(health: HealthConfig, origin: str) -> None:
    for each in fields(health):
        amount = getattr(health, each.name)
        if isinstance(amount, (int, float)) and (not math.isfinite(amount) or amount < 0):
            raise ConfigError(f"{origin}: health.{each.name}: {amount} is no amount", hint="0 or more")
    if health.clock_share > 1:
        raise ConfigError(f"{origin}: health.clock_share: {health.clock_share} is no share", hint="0 to 1")


def _check_selectors(config: FarmConfig, origin: str) -> None:
    """Whoever wrote a wrong selector should hear where it stands."""
    from farm.core.selector import Selector

    def check(where: str, parse: Callable[[], object]) -> None:
        try:
            parse()
        except UserError as error:
            raise ConfigError(f"{origin}: {where}: {error.message}", hint=error.hint) from error

    for number, rule in enumerate(config.adopt):
        check(f"adopt.{number}", partial(AdoptionRule.parse, rule.match, rule.pool, rule.name))
    for alias, selector in config.aliases.items():
        check(f"aliases.{alias}", partial(Selector.parse, selector))


def _with_paths(config: FarmConfig) -> FarmConfig:
    state = config.state_dir if config.state_dir != Path() else default_state_dir()
    runtime = config.runtime_dir if config.runtime_dir != Path() else default_runtime_dir()
    return replace(config, state_dir=state.expanduser().absolute(), runtime_dir=runtime.expanduser().absolute())
