"""The configuration: one frozen object, from TOML < environment < flags.

The environment spells a key as `FARM_` plus its path joined by `__`: `FARM_TVM__PORT=9200` is `[tvm] port = 9200`.
Unknown keys are refused with the nearest known one; nothing is guessed.
"""

from __future__ import annotations

import difflib
import ipaddress
import json
import os
import stat
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

from pydantic import Field

from farm.bundle.rollout_rules import RolloutConfig
from farm.common.errors import Code, UserError
from farm.common.field_errors import field_error
from farm.common.install import ENDED_DEMO_HINT, TVM_SOURCE_VARIABLE, default_runtime_dir, default_state_dir
from farm.common.toml import parse_toml
from farm.config.consistency import mistakes
from farm.devices.battery_policy import BatteryConfig
from farm.devices.health.health_rules import HealthConfig
from farm.devices.health.probe.thermal import ProbeConfig
from farm.devices.identity.naming_rules import AdoptRule
from farm.devices.lifecycle.recovery import RecoveryConfig
from farm.devices.power.power_rules import PowerConfig, UsbConfig
from farm.devices.quiesce_policy import QuiesceConfig
from farm.devices.thermal.thermal_rules import HeatConfig
from farm.head.config import GatesConfig, LabConfig, LeaseConfig, UserConfig
from farm.jobs.config import JobsConfig, ToolchainConfig

ENV_PREFIX = "FARM_"
# Variables that are no configuration keys: where file, daemon and TVM's checkout are, what a lease sets for its
# commands (farm.client.lease); FARM_ADBD is for tests.
ENV_RESERVED = frozenset(
    {
        "FARM_CONFIG", "FARM_SOCKET", "FARM_DAEMON", "FARM_KEY", TVM_SOURCE_VARIABLE, "FARM_LEASE", "FARM_DEVICE",
        "FARM_ADBD",
    }
)  # fmt: skip
VALUES_HINT = "texts stand in quotes; numbers, true and false do not"
DEFAULT_TVM_PORT = 9190  # stock trackers default to 9190; `query_rpc_tracker` needs no flag
DEFAULT_WEB_PORT = 9191  # beside the TVM port
DEFAULT_HEAD_PORT = 9195  # after the ports of clients, builders and other hosts
MAX_FILE_BYTES = 1_000_000  # a lab's file has some kB
LAB_CONFIG = "the lab's configuration"
LAB_KEYS = ("adopt", "aliases", "gates", "jobs.workers", "quota", "user")  # those that it may set, for all hosts


Amount = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class ConfigError(UserError):
    """The configuration has a mistake."""

    code = Code.BAD_CONFIG


@dataclass(frozen=True, slots=True)
class ExternalConfig:
    """Servers that register themselves with the tracker: the permitted users and addresses."""

    allow: tuple[str, ...] = ("127.0.0.0/8", "::1/128")  # CIDRs
    custom_addresses: tuple[str, ...] = ()  # CIDRs or names they may announce in place of their own (--custom-addr)
    join: tuple[str, ...] = ()  # farm aliases they may share


@dataclass(frozen=True, slots=True)
class TvmConfig:
    """The TVM server."""

    host: str = "127.0.0.1"  # the address of the one port: tracker and sessions
    port: Annotated[int, Field(ge=0, le=65_535)] = DEFAULT_TVM_PORT  # 0: the kernel chooses
    gate: str = ""  # the socket of a running `farm gate`, which has port and sessions; empty: a child of the daemon
    local: Literal["any", "group"] = "any"  # logins of this host that the port serves: all, or the group farm's
    advertise: Mapping[str, str] = field(default_factory=dict)  # client CIDR -> address that it is given
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
class StoreConfig:
    """Storage: where, and for how long."""

    url: str = ""  # postgresql://USER@HOST/DATABASE; empty: farm.db in the state folder
    keep_days: Amount = 90.0  # ended jobs with their logs, and events
    max_mb: Annotated[int, Field(gt=0)] = 2_000  # of the database; the oldest ended jobs go first


@dataclass(frozen=True, slots=True)
class ArtifactsConfig:
    """Models, inputs and results on this host's disk."""

    budget_gb: Amount = 50.0  # the longest unused go first; never those of jobs that have not ended
    keep_days: Amount = 30.0  # without use


@dataclass(frozen=True, slots=True)
class WebConfig:
    """The web page and /metrics."""

    enabled: bool = True  # false: no page and no metrics
    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"  # the address they are served at
    port: Annotated[int, Field(ge=0, le=65_535)] = DEFAULT_WEB_PORT  # 0: the kernel chooses
    head_port: Annotated[int, Field(ge=0, le=65_535)] = DEFAULT_HEAD_PORT  # /metrics of `farm head`; 0: likewise
    allow_hosts: tuple[str, ...] = ()  # names the page is asked for by, beside loopback's and `host`; no ports
    read: Literal["loopback", "token"] = "loopback"  # readers without a sign-in: those of this host, or none
    required: bool = False  # whether the daemon ends when the port is taken; else it opens the page later


@dataclass(frozen=True, slots=True)
class ControlConfig:
    """The listener for clients on other hosts, and the audit log."""

    # "tcp://127.0.0.1:9192": clients with a key (farm auth new) connect there; empty: no such listener
    listen: str = ""
    # how long the audit log is kept; never more than its latest 500,000 rows
    audit_days: Annotated[float, Field(gt=0, le=36_500)] = 365.0


@dataclass(frozen=True, slots=True)
class BuildersConfig:
    """CPU machines that build tuning candidates (extra `builders`)."""

    # "tcp://192.0.2.10:9193": where builders connect and join; empty: none do. Port 0: a free one
    listen: str = ""
    advertise: str = ""  # the name or address that builders dial; empty: that of `listen`


@dataclass(frozen=True, slots=True)
class FarmConfig:
    """The whole configuration. `load` makes its paths absolute."""

    state_dir: Path = Path()  # what must survive; /var/lib/farm for root, else ~/.local/state/farm
    runtime_dir: Path = Path()  # sockets; /run/farm for root, else $XDG_RUNTIME_DIR/farm
    tvm: TvmConfig = TvmConfig()
    adb: AdbConfig = AdbConfig()
    adopt: tuple[AdoptRule, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)  # stock TVM key -> selector
    lease: LeaseConfig = field(default_factory=LeaseConfig)
    toolchain: Mapping[str, ToolchainConfig] = field(default_factory=lambda: {"default": ToolchainConfig()})
    jobs: JobsConfig = field(default_factory=JobsConfig)
    quota: UserConfig = field(default_factory=UserConfig)
    user: Mapping[str, UserConfig] = field(default_factory=dict)  # by user name (or source address)
    store: StoreConfig = StoreConfig()
    artifacts: ArtifactsConfig = ArtifactsConfig()
    heat: HeatConfig = field(default_factory=HeatConfig)
    gates: GatesConfig = field(default_factory=GatesConfig)
    probe: ProbeConfig = field(default_factory=ProbeConfig)
    health: HealthConfig = field(default_factory=HealthConfig)
    battery: BatteryConfig = field(default_factory=BatteryConfig)
    quiesce: QuiesceConfig = field(default_factory=QuiesceConfig)
    power: PowerConfig = field(default_factory=PowerConfig)
    usb: UsbConfig = field(default_factory=UsbConfig)
    recovery: RecoveryConfig = field(default_factory=RecoveryConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    web: WebConfig = field(default_factory=WebConfig)
    control: ControlConfig = field(default_factory=ControlConfig)
    builders: BuildersConfig = field(default_factory=BuildersConfig)
    lab: LabConfig = field(default_factory=LabConfig)

    @property
    def control_socket(self) -> Path:
        """Where the control channel listens."""
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
    optional: bool = False,
    lab: str = "",
) -> FarmConfig:
    """Read the configuration.

    Args:
        path: a TOML file; None means `$FARM_CONFIG`, then /etc/farm/farm.toml if it exists.
        environ: the environment.
        flags: dotted keys from the command line (`{"tvm.port": 9200}`); None values are skipped.
        optional: a file that is named and not there has no keys.
        lab: TOML of `LAB_KEYS`; what it sets replaces those keys of the file.

    Raises:
        ConfigError: the file cannot be read, a key is unknown, or a value has the wrong type.
    """
    tree, origin = _read_file(path, environ, optional=optional)
    elsewhere: dict[str, str] = {}  # keys that the file does not set, and what sets them
    for key, value in _lab_values(lab).items():
        elsewhere[key] = LAB_CONFIG
        _put(tree, key.split("."), value, origin)
    for name, value in environ.items():
        if name.startswith(ENV_PREFIX) and name not in ENV_RESERVED:
            keys = name.removeprefix(ENV_PREFIX).lower().split("__")
            elsewhere[".".join(keys)] = f"environment {name}"
            _put(tree, keys, _scalar(value), f"environment {name}")
    for key, flag in (flags or {}).items():
        if flag is not None:
            elsewhere[key] = "the command line"
            _put(tree, key.split("."), flag, "the command line")
    try:
        return _with_paths(_checked(tree, origin))
    except ConfigError as error:
        problem = error.message.removeprefix(f"{origin}: ")
        for key, setting in elsewhere.items():
            if problem.startswith((f"{key}:", f"{key} ", f"{key}.", f"unknown key {key!r}")):
                hint = "" if error.hint == VALUES_HINT else error.hint
                raise ConfigError(f"{setting}: {problem}", hint=hint) from error
        raise


def check_lab_config(text: str) -> None:
    """Check what hosts would read as the lab's configuration.

    Raises:
        ConfigError: it is no TOML, sets a key that each host has of its own, or a value is wrong.
    """
    if len(text) > MAX_FILE_BYTES:
        raise ConfigError(f"{LAB_CONFIG} has more than {MAX_FILE_BYTES:,} characters", hint="leave comments out")
    tree: dict[str, Any] = {}
    for key, value in _lab_values(text).items():
        _put(tree, key.split("."), value, LAB_CONFIG)
    _checked(tree, LAB_CONFIG)


def lab_keys(text: str) -> tuple[str, ...]:
    """Those of `LAB_KEYS` that a lab's configuration sets.

    Raises:
        ConfigError: see `check_lab_config`.
    """
    return tuple(_lab_values(text))


def _lab_values(text: str) -> dict[str, Any]:
    """The value of each of `LAB_KEYS` that a text sets."""
    try:
        tree = parse_toml(text.encode())
    except ValueError as error:
        raise ConfigError(f"{LAB_CONFIG}: it is not valid TOML: {error}", hint=VALUES_HINT) from error
    values: dict[str, Any] = {}
    for key, value in tree.items():
        inside = [f"{key}.{name}" for name in value] if isinstance(value, dict) else []
        if key in LAB_KEYS:
            values[key] = value
        elif inside and set(inside) <= set(LAB_KEYS):
            values |= {name: value[name.rpartition(".")[2]] for name in inside}
        else:
            own = next((name for name in inside if name not in LAB_KEYS), key)
            raise ConfigError(
                f"{LAB_CONFIG}: {own!r} is none of its keys",
                hint=f"it may set {', '.join(LAB_KEYS)}; all else stands in each host's own file",
            )
    return values


def _read_file(path: Path | None, environ: Mapping[str, str], *, optional: bool) -> tuple[dict[str, Any], str]:
    named = path or (Path(environ["FARM_CONFIG"]) if environ.get("FARM_CONFIG") else None)
    chosen = named or Path("/etc/farm/farm.toml")
    if (optional or named is None) and not chosen.exists():
        return {}, "defaults"
    try:
        return parse_toml(_read(chosen)), str(chosen)
    except FileNotFoundError as error:
        if path is None:
            raise ConfigError(f"FARM_CONFIG names {chosen}, which does not exist", hint=ENDED_DEMO_HINT) from error
        raise ConfigError(f"cannot read {chosen}: {error.strerror}", hint="check --config") from error
    except tomllib.TOMLDecodeError as error:
        hint = f"close every bracket and quote, and write each key once; {VALUES_HINT}"
        raise ConfigError(f"cannot read {chosen}: it is not valid TOML: {error}", hint=hint) from error
    except (OSError, ValueError) as error:
        problem = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"cannot read {chosen}: {problem}", hint="check --config or FARM_CONFIG") from error


def _read(path: Path) -> bytes:
    """The content of a regular file of a sensible size; raises ValueError for any other."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a fifo without a writer blocks forever
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("it is no regular file")
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise ValueError(f"it has more than {MAX_FILE_BYTES:,} bytes")
    return data


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


def _completed(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The tree with what its named tables leave out: one toolchain is `default`; a user has what `[quota]` says."""
    found = dict(tree)
    if isinstance(toolchains := tree.get("toolchain"), dict):
        found["toolchain"] = {"default": {}, **toolchains}
    quota, users = tree.get("quota", {}), tree.get("user")
    if isinstance(quota, dict) and isinstance(users, dict):
        found["user"] = {name: {**quota, **own} if isinstance(own, dict) else own for name, own in users.items()}
    return found


def _checked(tree: Mapping[str, Any], origin: str) -> FarmConfig:
    try:
        _refuse_unknown(FarmConfig, tree, origin, ())
        return _validate(_completed(tree), origin)
    except ConfigError:
        raise
    except (ValueError, OverflowError, RecursionError) as error:  # numbers that Python does not even print
        raise ConfigError(f"{origin}: a value is out of any range: {error}"[:500]) from error


def _validate(tree: Mapping[str, Any], origin: str) -> FarmConfig:
    from pydantic import TypeAdapter, ValidationError

    try:
        config = TypeAdapter(FarmConfig).validate_python(tree)
    except ValidationError as error:
        errors = error.errors()
        where, problem, hint = field_error(errors)
        if not hint:
            of_its_kind = errors[0]["type"].endswith(("_type", "_parsing"))
            hint = VALUES_HINT if of_its_kind else _range_of(FarmConfig, errors[0]["loc"])
        raise ConfigError(f"{origin}: {where} {problem}", hint=hint) from error
    for cidr in (*config.tvm.advertise, *config.tvm.external.allow):
        try:
            ipaddress.ip_network(cidr)
        except ValueError as error:
            raise ConfigError(f"{origin}: {error}", hint="write a network, e.g. 10.0.0.0/8") from error
    for mistake, hint in mistakes(config):
        raise ConfigError(f"{origin}: {mistake}", hint=hint)
    _check_names(config, origin)
    return config


def _range_of(hint: Any, path: Sequence[str | int]) -> str:
    """The values that the field at `path` takes, for a person: "0 to 65535"; "" for a field without bounds."""
    if path and isinstance(hint, type) and is_dataclass(hint):
        fields_of = get_type_hints(hint, include_extras=True)
        return _range_of(fields_of[str(path[0])], path[1:]) if path[0] in fields_of else ""
    bounds: dict[str, float] = {}
    for info in getattr(hint, "__metadata__", ()):
        for bound in getattr(info, "metadata", ()):
            bounds |= {name: getattr(bound, name) for name in ("ge", "gt", "le") if hasattr(bound, name)}
    if {"ge", "le"} <= bounds.keys():
        return f"{bounds['ge']:g} to {bounds['le']:g}"
    if bounds:
        least = f"{bounds['ge']:g} or more" if "ge" in bounds else f"more than {bounds['gt']:g}"
        return f"{least}, at most {bounds['le']:g}" if "le" in bounds else least
    inside = path[1:] if path and get_args(hint)[:1] == (str,) else path  # a table by name
    return next((found for each in get_args(hint) if (found := _range_of(each, inside))), "")


def _check_names(config: FarmConfig, origin: str) -> None:
    """A wrong selector, pool or key is refused with its place in the file."""
    from farm.common.selector import Selector, checked_value, normalise

    def check(where: str, parse: Callable[[], object]) -> None:
        try:
            parse()
        except UserError as error:
            raise ConfigError(f"{origin}: {where}: {error.message}", hint=error.hint) from error

    for number, rule in enumerate(config.adopt):
        check(f"adopt.{number}", rule.check)
    for alias, selector in config.aliases.items():
        check(f"aliases.{alias}", partial(checked_value, alias, "a key"))
        check(f"aliases.{alias}", partial(Selector.parse, selector))
    for key in config.gates.tvm_class:
        check(f"gates.tvm_class.{key}", partial(checked_value, key, "a key"))
    for pool in config.recovery.pool_away_s:
        check(f"recovery.pool_away_s.{pool}", partial(checked_value, pool, "a pool"))
        if (written := normalise(pool)) != pool:
            raise ConfigError(f"{origin}: recovery.pool_away_s.{pool}: no pool is spelt so", hint=f"write {written}")


def _with_paths(config: FarmConfig) -> FarmConfig:
    state = config.state_dir if config.state_dir != Path() else default_state_dir()
    runtime = config.runtime_dir if config.runtime_dir != Path() else default_runtime_dir()
    return replace(config, state_dir=state.expanduser().absolute(), runtime_dir=runtime.expanduser().absolute())
