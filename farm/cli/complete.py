"""What TAB offers: commands and options from the tree of commands, names from the daemon, in a moment or not at all.

Everything here fails silently: a person who presses TAB wants no error message in the line.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import typer

LIMIT_S = 0.5  # for one answer of the daemon: TAB is no place to wait
DEBUG = "FARM_DEBUG_COMPLETION"  # set: a mistake here is told
MOST_JOBS = 100  # the newest
# Names are other people's words: what a shell would not take as one plain word is not offered.
_PLAIN = re.compile(r"[\w.,:=@%+/-]+")
_BREAKS = "=:"  # where bash begins a new word (COMP_WORDBREAKS)

Pair = tuple[str, str]  # a value, and what it is


def devices(incomplete: str) -> list[Pair]:
    """Names of phones."""
    rows = _asked("status").get("devices", ())
    return _beginning(incomplete, ((row["name"], f"{row['state']} {row['soc'] or ''}".strip()) for row in rows))


def jobs(incomplete: str) -> list[Pair]:
    """Ids of jobs and arrays, the newest first."""
    rows = _asked("job.list", limit=MOST_JOBS).get("jobs", ())
    told = [(row["id"], f"{row['state']} {row['kind']} {row['name']}") for row in rows]
    arrays = {row["array"]: f"array of {row['kind']} {row['name']}" for row in rows if row["array"]}
    return _beginning(incomplete, [*told, *arrays.items()])


def selectors(incomplete: str) -> list[Pair]:
    """Keys that phones answer to, and labels with the values there are; behind a comma the next label."""
    before, comma, last = incomplete.rpartition(",")
    rows = _asked("status").get("devices", ())
    keys = {key: "key" for row in rows for key in row["aliases"]}
    labels = {
        f"{label}={_label(row[label])}": "label" for row in rows for label in ("soc", "gpu", "pool") if row.get(label)
    }
    labels |= {f"name={row['name']}": "label" for row in rows}
    wanted = labels if comma else keys | labels
    return [(before + comma + value, told) for value, told in _beginning(last, wanted.items())]


def aliases(incomplete: str) -> list[Pair]:
    """Keys of stock TVM clients."""
    rows = _asked("alias.list").get("aliases", ())
    return _beginning(incomplete, ((row["alias"], row["selector"] or "by itself") for row in rows))


def bundles(incomplete: str) -> list[Pair]:
    """Names of bundles."""
    rows = _asked("bundle.list").get("bundles", ())
    return _beginning(incomplete, ((row["name"], f"{row['abi']} {row['hash'][:12]}") for row in rows))


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
    """Names of accounts that have not been revoked; only operators are told."""
    rows = _asked("auth.list").get("accounts", ())
    return _beginning(incomplete, ((row["name"], row["role"]) for row in rows if not row["revoked_at"]))


def models(incomplete: str) -> list[Pair]:
    """Names of models that were benched lately."""
    rows = _asked("job.list", limit=MOST_JOBS).get("jobs", ())
    return _beginning(incomplete, ((row["name"], "benched") for row in rows if row["kind"] == "bench"))


def targets(incomplete: str) -> list[Pair]:
    """What models are compiled for; which of them a phone has: `farm device show`."""
    from farm.fleet.targets import GPU_TARGETS

    return _beginning(incomplete, ((name, "") for name in ("cpu", *GPU_TARGETS)))


def profiles(incomplete: str) -> list[Pair]:
    """Profiles of virtual phones; behind a comma the next one."""
    from farm.simulation.profiles import list_profiles

    before, comma, last = incomplete.rpartition(",")
    return [(before + comma + name, told) for name, told in _beginning(last, ((each, "") for each in list_profiles()))]


def faults(incomplete: str) -> list[Pair]:
    """What breaks a virtual phone."""
    from farm.simulation.faults import FAULTS

    return _beginning(incomplete, ((name, one.meaning) for name, one in FAULTS.items()))


def explainable(ctx: typer.Context, incomplete: str) -> list[Pair]:
    """What `farm explain WHAT` can be about."""
    kinds: dict[str, Callable[[str], list[Pair]]] = {"device": devices, "job": jobs, "key": selectors}
    what = ctx.params.get("what")
    named = str(getattr(what, "value", what))
    return kinds[named](incomplete) if named in kinds else []


def _asked(kind: str, **fields: Any) -> dict[str, Any]:
    """The daemon's answer; empty when there is none in time."""
    from farm.cli.context import connect
    from farm.core.errors import FarmError

    try:
        with connect() as client:
            *_, answer = client.stream(kind, LIMIT_S, **fields)
            return answer
    except (FarmError, TimeoutError, OSError):
        return {}


def _beginning(incomplete: str, pairs: Iterable[Pair]) -> list[Pair]:
    found = {value: told for value, told in pairs if value.startswith(incomplete) and _PLAIN.fullmatch(value)}
    return list(found.items())


def _label(value: str) -> str:
    """As labels are normalised (docs/interfaces.md)."""
    return re.sub(r"[^a-z0-9._-]+", "-", value.strip().lower())


# -- what the scripts of `farm completions` call -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Offer:
    """What may stand here. `files`: the shell shall offer file names."""

    values: tuple[Pair, ...] = ()
    files: bool = False


def answer(arguments: Sequence[str]) -> None:
    r"""Print what may stand at the end of a line that has begun.

    `bash LINE`: the line up to the cursor, as typed. `zsh WORD...` and `fish WORD...`: its words after `farm`, the last
    of them incomplete. Answers are lines: `\tfile`, or a value (a tab and its description behind it, but for bash).
    """
    shell, *words = arguments or ("",)
    try:
        if shell == "bash":
            words = _words(words[0] if words else "")
        offer, typed = offered(words[:-1], words[-1] if words else "")
    except Exception:  # a mistake of ours must not appear in the line that somebody types
        if os.environ.get(DEBUG):
            raise
        return
    lines = ["\tfile"] if offer.files else []
    for value, told in offer.values:
        if shell == "bash":
            lines.append(value[_broken(typed) :])
        else:
            lines.append(f"{value}\t{' '.join(told.split())}")
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def offered(words: Sequence[str], typed: str) -> tuple[Offer, str]:
    """What may stand in place of `typed` behind `words`; and `typed`."""
    # Private, so pyproject says which releases of typer: before 0.26 this was click's, a package of its own.
    from typer._click.shell_completion import _resolve_context, _resolve_incomplete
    from typer.main import get_command

    from farm.cli.main import app

    command = get_command(app)
    ctx = _resolve_context(command, {}, "farm", list(words))
    found, rest = _resolve_incomplete(ctx, list(words), typed)
    ahead = typed[: len(typed) - len(rest)]  # `--on=` of `--on=soc`
    names = getattr(found, "commands", None)
    if names is not None and not rest.startswith("-"):
        return Offer(tuple(_subcommands(names, rest))), typed
    kind = getattr(found, "type", None)
    items = [(ahead + item.value, item.help or "") for item in found.shell_complete(ctx, rest)]
    files = not items and type(kind).__name__ in ("TyperPath", "Path", "File") and not rest.startswith("-")
    return Offer(tuple(items), files), typed


def _subcommands(names: Any, begun: str) -> Iterable[Pair]:
    """Of the whole farm by its sections, which imports nothing; of a group, with the first line of their help."""
    from farm.cli.lazy import Commands
    from farm.cli.main import SECTIONS

    if isinstance(names, Commands):
        told = {name: about for some in SECTIONS.values() for name, (_, about) in some.items()}
    else:
        told = {name: each.get_short_help_str(80) for name, each in names.items() if not each.hidden}
    return ((name, about) for name, about in told.items() if name.startswith(begun))


def _words(line: str) -> list[str]:
    """The words after `farm` of a line that may end in the middle of one, even inside quotes."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";|&")
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    try:
        for word in lexer:
            words = [] if set(word) <= set(";|&") else [*words, word]  # what counts is the last command of a pipe
    except ValueError:
        words.append(lexer.token)
    if line[-1:].isspace():
        words.append("")
    return words[1:]


def _broken(typed: str) -> int:
    """How much of a word bash keeps: it replaces only what stands behind the last `=` or `:`."""
    return max(typed.rfind(each) for each in _BREAKS) + 1
