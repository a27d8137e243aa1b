"""How pages are rendered: the templates with their filters, and the page's own static files, read once into memory."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import dropwhile
from typing import Any
from urllib.parse import quote

from jinja2 import ChoiceLoader, Environment, FunctionLoader, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from farm.common.durations import digits, format_duration, in_one_unit, interval_words, time_unit, took, with_unit
from farm.common.files import short_hash, size_words
from farm.common.phone_text import escaped
from farm.common.tones import tone
from farm.control.callers import Role
from farm.devices.health.series import LINE_EVERY_S
from farm.kinds import KINDS
from farm.measure.conditions import left_open, next_step, ratio_words, reasons_of, uncertainty_words, versus_fastest
from farm.measure.conditions import percent as share
from farm.results.series import checked_against

SPARK_WIDTH, SPARK_HEIGHT = 96, 24
SPARK_SPAN_C = 8.0  # at least so many degrees from bottom to top: noise is no mountain
_TIME = Markup('<time datetime="{}">{} UTC</time>')
_TICKING = Markup('<span data-elapsed="{:.0f}">{}</span>')  # app.js adds the time since
_LINK = Markup('<a href="{}">{}</a>')
_SPARK = Markup(
    '<svg class="spark" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img">'
    '<title>{}</title><polyline points="{}"/></svg>'
)
Value = Callable[[Mapping[str, Any]], Any]  # what rows are sorted or grouped by

# Fields of verbs that the page's forms have by another name than their own.
FIELDS = {"device": "Phone", "of_kind": "Kind", "reason": "What is wrong with it", "rename": "Name"}


def field(name: str) -> str:
    """A verb's field as people read it in a form."""
    return FIELDS.get(name, name.replace("_", " ").capitalize())


def interval(found: Mapping[str, Any]) -> str:
    """`0.91 to 0.93 ms`, or `none`, in the unit of `with_unit` for its median."""
    unit, scale = time_unit(found.get("median_ms") or 0.0)
    words = interval_words(found, factor=scale, between="to")
    return "none" if words == "-" else f"{words} {unit}"


def celsius(value: float | None) -> str:
    """A temperature."""
    return "-" if value is None else f"{value:.1f} °C"


def percent(value: int | None) -> str:
    """A share."""
    return "-" if value is None else f"{value} %"


def size(count: float | None) -> str:
    """Bytes."""
    return "-" if count is None else size_words(count)


def duration(seconds: float | None) -> str:
    """A span of time."""
    return "-" if seconds is None else format_duration(seconds)


def lasted(began: str | None, ended: str | None, now: str) -> Markup | str:
    """How long something lasted, or lasts by `now`; a dash if it did not begin."""
    if not began or ended:
        return took(began, ended) or "\N{EN DASH}"
    seconds = max(0.0, (datetime.fromisoformat(now) - datetime.fromisoformat(began)).total_seconds())
    return _TICKING.format(seconds, format_duration(seconds))


def toggled(sort: str, column: str) -> str:
    """The sorting that a click on a column's title leads to: up, then down (`-column`)."""
    return f"-{column}" if sort == column else column


def in_order(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Value], sort: str) -> list[Mapping[str, Any]]:
    """Rows sorted by one of the columns, those without a value last; as they are if there is no such column."""
    value = columns.get(sort.removeprefix("-"))
    if value is None:
        return list(rows)
    known = [row for row in rows if value(row) not in (None, "", ())]
    rest = [row for row in rows if value(row) in (None, "", ())]
    return sorted(known, key=value, reverse=sort.startswith("-")) + rest


def moment(at: str | datetime | None) -> Markup:
    """A point in time as the browser's own clock shows it; UTC without scripts."""
    if not at:
        return Markup("-")
    when = datetime.fromisoformat(at) if isinstance(at, str) else at
    return _TIME.format(when.isoformat(), f"{when:%Y-%m-%d %H:%M:%S}")


def model_name(device: Mapping[str, Any]) -> Markup:
    """A phone's marketing name; one in other than Latin letters is the tooltip of its model."""
    market_name, model = device.get("market_name") or "", device.get("model") or ""
    if not model or all(ord(each) <= LAST_LATIN for each in market_name if each.isalpha()):
        return escape(market_name or model)
    return Markup('<span title="{}">{}</span>').format(market_name, model)


def segment(text: str) -> str:
    """Text as one segment of a path in a link."""
    return quote(text, safe="")


def _coded(text: str) -> Markup:
    parts = text.split("`")
    if len(parts) % 2 == 0:  # one without its other: no code
        return escape(text)
    return Markup("").join(Markup("<code>{}</code>").format(part) if i % 2 else part for i, part in enumerate(parts))


LAST_LATIN = 0x24F  # the end of Latin Extended-B in Unicode
_COMMAND = re.compile(
    r"`?\bfarm (?:(?P<list>device|job|lease|bundle|records) list\b(?: --(?P<by>user|array) (?P<whose>[\w.-]*\w))?"
    r"|(?:device (?:adopt|release|reboot|power-cycle|show|drain|maintain)|explain device)"
    r" (?P<device>(?!is\b)[\w.:-]*\w)"
    r"|(?:job (?:show|cancel|resume|hold)|logs|watch|explain job) (?P<job>[\w-]+-[0-9a-f]+)"
    r"|(?P<page>status|lease (?:show|extend|release|kick) [\w.:-]*\w|bundle (?:show|promote|rollback) [\w.-]*\w"
    r"|drain --end))(?: --force)?(?=$|[;,.)`:]| (?!--))`?"
)
_PAGES = {
    "device": "/", "status": "/", "drain": "/", "job": "/jobs", "lease": "/leases", "bundle": "/bundles",
    "records": "/records",
}  # fmt: skip


def linked(text: str) -> Markup:
    """A sentence in which a command that the page can do, or show the answer of, leads to that page.

    What else stands in `backticks` is code.
    """
    parts, at = [], 0
    for found in _COMMAND.finditer(text):
        if found["device"]:
            to = f"/devices/{segment(found['device'])}"
        elif found["job"]:
            to = f"/jobs/{segment(found['job'])}"
        else:
            by = f"?{found['by']}={quote(found['whose'])}" if found["by"] else ""
            to = _PAGES[(found["list"] or found["page"]).partition(" ")[0]] + by
        parts += [_coded(text[at : found.start()]), _LINK.format(to, found[0].strip("`"))]
        at = found.end()
    return Markup("").join([*parts, _coded(text[at:])])


def spark(values: Sequence[float | None]) -> Markup:
    """A line of the latest temperatures, °C, oldest first, as wide as their number. Its title gives their span."""
    line = list(dropwhile(lambda value: value is None, values))
    known = [value for value in line if value is not None]
    points, title = "", "temperature over time: not known yet"
    if len(known) > 1:
        low, high = min(known), max(known)
        title = f"temperature of the last {format_duration(len(line) * LINE_EVERY_S)}: {low:.1f} to {high:.1f} °C"
        span, step = max(high - low, SPARK_SPAN_C), SPARK_WIDTH / (len(line) - 1)
        bottom = (low + high - span) / 2
        points = " ".join(
            f"{number * step:.1f},{(SPARK_HEIGHT - 2) * (1 - (value - bottom) / span) + 1:.1f}"
            for number, value in enumerate(line)
            if value is not None
        )
    return _SPARK.format(SPARK_WIDTH, SPARK_HEIGHT, title, points)


FILTERS: dict[str, Callable[..., Any]] = {
    "tone": tone,
    "celsius": celsius,
    "percent": percent,
    "size": size,
    "duration": duration,
    "digits": digits,
    "with_unit": with_unit,
    "in_one_unit": partial(in_one_unit, aligned=False),
    "interval": interval,
    "ratio": ratio_words,
    "reasons": reasons_of,
    "next_step": next_step,
    "left_open": left_open,
    "uncertain": uncertainty_words,
    "share": share,
    "versus_fastest": versus_fastest,
    "moment": moment,
    "model_name": model_name,
    "segment": segment,
    "spark": spark,
    "linked": linked,
    "short_hash": short_hash,
    "checked_against": checked_against,
}


TYPES = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "json": "application/json",
    "LICENSE": "text/plain; charset=utf-8",
}
VERSION_CHARS = 12


@dataclass(frozen=True, slots=True)
class Asset:
    """One file as it is served."""

    body: bytes
    media_type: str
    version: str  # start of its SHA-256: part of its address, so that browsers may keep it forever


def read_assets() -> Mapping[str, Asset]:
    """Every file under farm/web/static by its path there. Blocking; about 200 kB."""
    found: dict[str, Asset] = {}

    def walk(folder: Traversable, path: str) -> None:
        for entry in folder.iterdir():
            if entry.is_dir():
                walk(entry, f"{path}{entry.name}/")
            elif (media_type := TYPES.get(entry.name.rpartition(".")[2])) is not None:
                body = entry.read_bytes()
                found[path + entry.name] = Asset(body, media_type, hashlib.sha256(body).hexdigest()[:VERSION_CHARS])

    walk(files("farm.web") / "static", "")
    return found


def make_templates(assets: Mapping[str, Asset]) -> Environment:
    """The templates. Inserted values are escaped, and characters that turn or hide text are spelled out."""
    environment = Environment(
        loader=ChoiceLoader((PackageLoader("farm.web"), FunctionLoader(_kind_template))),
        autoescape=True,
        finalize=lambda value: escaped(value) if type(value) is str else value,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters.update(FILTERS)

    def static(path: str) -> str:
        return f"/static/{assets[path].version}/{path}"

    environment.globals["static"] = static
    environment.globals |= {"Role": Role, "lasted": lasted, "toggled": toggled}
    return environment


def _kind_template(name: str) -> str | None:
    """`kind/NAME`: the page.html of a kind of jobs; None: it has none."""
    kind = KINDS.kinds.get(name.removeprefix("kind/"))
    return kind.text("page.html") if kind is not None else None
