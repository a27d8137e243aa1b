"""`farm completions`, and the names that TAB offers: the daemon is asked, and answers in a moment or not at all.

A daemon that does not answer is no error: a person who presses TAB wants no message in the line.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal

import typer

from farm.common.files import short_hash
from farm.model.job import MEASURING_KINDS

VARIABLE = "_FARM_COMPLETE"  # the scripts of `farm completions` set it at each TAB
LIMIT_S = 0.5  # for one answer of the daemon: TAB is no place to wait
MAX_JOBS = 100  # the newest
_LABELS = ("name", "soc", "gpu", "pool", "host")  # of those in `farm status`
# Names are other people's words: what a shell would not take as one plain word is not offered.
_PLAIN = re.compile(r"[\w.,:=@%+/-]+")
_UNSAFE = re.compile(r"[^\w.,:=@%+/ -]+")  # typer's script for zsh evaluates descriptions

Pair = tuple[str, str]  # a value, and what it is


def completions(shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="bash, zsh or fish.")]) -> None:
    """Print the script that completes commands, options and names in a shell.

    Names of phones, jobs, keys, bundles and leases are asked of the daemon, for half a second at most; without a daemon
    none are offered.
    """
    from typer._completion_shared import get_completion_script

    script = get_completion_script(prog_name="farm", complete_var=VARIABLE, shell=shell)
    sys.stdout.write(f"{script}\n")


def devices(incomplete: str) -> list[Pair]:
    """Names of phones."""
    rows = _asked("device.list").get("devices", ())
    return _beginning(incomplete, ((row["name"], f"{row['state']} {row['soc'] or ''}".strip()) for row in rows))


def jobs(incomplete: str) -> list[Pair]:
    """Ids of jobs and arrays, the newest first."""
    rows = _asked("job.list", limit=MAX_JOBS).get("jobs", ())
    found = [(row["id"], f"{row['state']} {row['kind']} {row['name']}") for row in rows]
    arrays = {row["array"]: f"array of {row['kind']} {row['name']}" for row in rows if row["array"]}
    return _beginning(incomplete, [*found, *arrays.items()])


def selectors(incomplete: str) -> list[Pair]:
    """Keys that phones answer to, and labels with the values there are; behind a comma the next label."""
    before, comma, last = incomplete.rpartition(",")
    rows = _asked("device.list").get("devices", ())
    keys = {key: "key" for row in rows for key in row["aliases"]}
    labels = {f"{label}={_label(row[label])}": "label" for row in rows for label in _LABELS if row.get(label)}
    wanted = labels if comma else keys | labels
    return [(before + comma + value, about) for value, about in _beginning(last, wanted.items())]


def aliases(incomplete: str) -> list[Pair]:
    """Keys of stock TVM clients."""
    rows = _asked("alias.list").get("aliases", ())
    return _beginning(incomplete, ((row["alias"], row["selector"] or "by itself") for row in rows))


def bundles(incomplete: str) -> list[Pair]:
    """Names of bundles."""
    rows = _asked("bundle.list").get("bundles", ())
    names = ((name, f"{row['abi']} {short_hash(row['hash'])}") for row in rows for name in row["names"])
    return _beginning(incomplete, names)


def leases(incomplete: str) -> list[Pair]:
    """Leases, and the phones that are held."""
    rows = _asked("lease.list").get("leases", ())
    held = [(row["device"], f"held by {row['user']}") for row in rows]
    return _beginning(incomplete, [*held, *((row["id"], f"{row['device']}, {row['user']}") for row in rows)])


def toolchains(incomplete: str) -> list[Pair]:
    """Names of toolchains."""
    rows = _asked("toolchain.list").get("toolchains", ())
    return _beginning(incomplete, ((row["name"], row["tvm"] or "") for row in rows))


def record_sets(incomplete: str) -> list[Pair]:
    """Sets of tuning records, by their number."""
    rows = _asked("records.list").get("sets", ())
    return _beginning(incomplete, ((str(row["set"]), f"{row['name']} version {row['version']}") for row in rows))


def accounts(incomplete: str) -> list[Pair]:
    """Names of accounts that have not been revoked; only operators get them."""
    rows = _asked("auth.list").get("accounts", ())
    return _beginning(incomplete, ((row["name"], row["role"]) for row in rows if not row["revoked_at"]))


def models(incomplete: str) -> list[Pair]:
    """Names of models that were benched lately."""
    rows = _asked("job.list", limit=MAX_JOBS).get("jobs", ())
    return _beginning(incomplete, ((row["name"], "benched") for row in rows if row["kind"] in MEASURING_KINDS))


def targets(incomplete: str) -> list[Pair]:
    """The targets that models are compiled for; which of them a phone has: `farm device show`."""
    from farm.devices.identity.targets import GPU_TARGETS

    return _beginning(incomplete, ((name, "") for name in ("cpu", *GPU_TARGETS)))


def profiles(incomplete: str) -> list[Pair]:
    """Profiles of virtual phones; behind a comma the next one."""
    from farm.simulation.profiles import list_profiles

    before, comma, last = incomplete.rpartition(",")
    return [
        (before + comma + name, about) for name, about in _beginning(last, ((each, "") for each in list_profiles()))
    ]


def faults(incomplete: str) -> list[Pair]:
    """The faults of a virtual phone."""
    from farm.simulation.faults import FAULTS

    return _beginning(incomplete, ((name, one.meaning) for name, one in FAULTS.items()))


def explainable(ctx: typer.Context, incomplete: str) -> list[Pair]:
    """The subjects of `farm explain WHAT`."""
    kinds: dict[str, Callable[[str], list[Pair]]] = {"device": devices, "job": jobs, "key": selectors}
    what = str(ctx.params.get("what"))
    return kinds[what](incomplete) if what in kinds else []


def _asked(kind: str, **fields: Any) -> dict[str, Any]:
    """The daemon's answer; empty when there is none in time."""
    from farm.cli.connection import connect
    from farm.common.errors import FarmError

    try:
        with connect() as client:
            *_, answer = client.stream(kind, LIMIT_S, **fields)
            return answer
    except (FarmError, TimeoutError, OSError):
        return {}


def _beginning(incomplete: str, pairs: Iterable[Pair]) -> list[Pair]:
    found = {value: about for value, about in pairs if value.startswith(incomplete) and _PLAIN.fullmatch(value)}
    return [(value, _UNSAFE.sub(" ", about)) for value, about in found.items()]


def _label(value: str) -> str:
    """As labels are normalised (docs/protocol.md)."""
    return re.sub(r"[^a-z0-9._-]+", "-", value.strip().lower())


# -- typer's completion ------------------------------------------------------------------------------------------------


def prepare() -> None:
    """Let typer answer the scripts of `farm completions`; one of its ways with bash is made good."""
    from typer._click.shell_completion import add_completion_class
    from typer._completion_classes import BashComplete, completion_init

    class JoinedWords(BashComplete):
        """bash breaks `soc=sm8650` into three words, and replaces only the last of them by an answer."""

        def get_completion_args(self) -> tuple[list[str], str]:
            args, typed = super().get_completion_args()
            while args and (typed.startswith("=") or args[-1].endswith("=")):
                typed = args.pop() + typed
            self._selector = typed.partition("=")[2] if typed.startswith("--") else typed
            return args, typed

        def format_completion(self, item: Any) -> str:
            value = str(item.value)
            return value.rpartition("=")[2] if "=" in self._selector else value

    completion_init()
    add_completion_class(JoinedWords, "bash")
