"""Events as sentences for people, the same on the page and in the terminal. Pure.

A daemon of another release, or a job, may give data another type than it has here: that is shown as it is.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from farm.common.durations import format_duration
from farm.common.files import short_hash, size_words

# The first of these data that an event has follows its sentence, after a colon.
WHY = ("error", "detail", "reason", "cause", "message")
MAX_DEPTH = 4  # of lists and objects within each other
# A sentence for each kind. Braces hold names of data; a part in brackets is left out if a name in it has no value.
# `device.service draining` is the sentence of `device.service` where `service` is `draining`.
_SENTENCES = {
    "device.pushing": "{subject} gets its runtime: {sent_bytes} of {total_bytes}",
    "device.cooling": "{subject} is closed to {classes}",
    "device.cool": "{subject} is open to {classes} again",
    "device.finding": "Probes of {subject} find a problem",
    "device.finding_over": "Probes of {subject} no longer find the problem",
    "device.service": "{subject} has another service",
    "device.service in": "{by} put {subject} back in service",
    "device.service draining": "{by} drains {subject}",
    "device.service maintenance": "{by} took {subject} out of service for maintenance",
    "device.tidied": "{killed} processes and {removed} files of a user were removed from {subject}, {left} are left",
    "device.repaired": "farm pushed its files to {subject} again, because {files} had changed",
    "recovery.action": "Recovery of {subject} by {action} begins",
    "recovery.ended": "Recovery of {subject} by {action} ended after {took_s}[, {outcome}]",
    "battery.held": "{subject} is kept from charging at {percent} %",
    "battery.charges": "{subject} charges again at {percent} %",
    "battery.refused": "{subject} refused to stop or resume charging",
    "hub.lost": "Hub {subject} lost phones together: {devices}",
    "hub.back": "Phones of hub {subject} are back: {devices}",
    "host.lost": "Host {subject} is lost",
    "host.back": "Host {subject} is back",
    "host.removed": "Host {subject} is removed from the lab",
    "host.usb_lost": "Phones of several hubs vanished together: {devices}",
    "host.usb_back": "Phones of several hubs are back: {devices}",
    "host.draining": "[{by} drains ]host {subject}",
    "host.in_service": "[{by} put ]host {subject} back in service",
    "gate.lost": "The gate's process is gone: its sessions have ended",
    "gate.back": "The gate's process runs again",
    "builder.certified": "Builder {subject} has joined",
    "builder.joined": "Builder {subject} is connected, with {slots} slots",
    "builder.left": "Builder {subject} left after {built} candidates",
    "builder.excluded": "Builder {subject} gets no more candidates",
    "builder.killed": "Candidate {subject} killed builders: {builders}",
    "builder.removed": "Builder {subject} is removed",
    "adb.lost": "The adb server is gone, and is replaced",
    "adb.hangs": "The adb server hangs",
    "adb.clash": "Another adb server holds the phones",
    "adb.back": "The adb server answers again",
    "lease.granted": "{user} leased {device}[ for {job}][ after waiting {waited_s}]",
    "lease.extended": "{user} keeps {device} for another {more}",
    "lease.expiring": "{user}'s lease of {device} ends in {left_s}",
    "lease.hot": "{device}, leased by {user}, is too hot",
    "lease.revoked": "{user} loses {device}",
    "lease.released": "{user}'s lease of {device} ended after {held_s}",
    "session.opened": "{user} opened a session on {device}[ from {peer}]",
    "session.cut": "{user}'s session on {device} is cut",
    "session.ended": "{user}'s session on {device} ended after {seconds}, {outcome}, {bytes_up} up, {bytes_down} down",
    "job.failed": "{subject} of {user} failed",
    "job.submitted": "{user} submitted {subject}",
    "job.resumed": "{subject} of {user} continues",
    "job.waits": "{subject} waits",
    "job.progress": "{subject} makes progress[: {step}]",
    "attempt.started": "{job} begins on {device}",
    "attempt.ended": "{job} ended on {device}[, {state}]",
    "reservation.added": "{user} reserved phones by {selector}[ ({note})]",
    "reservation.removed": "The reservation of {selector} for {user} is removed",
    "bundle.candidate": "Bundle {hash} for {abi} is to be rolled out",
    "bundle.canary": "{device} is the first phone to get bundle {hash}",
    "bundle.trying": "{device} gets bundle {hash}",
    "bundle.failed": "Bundle {hash} failed on {device}, which gets its last proven bundle back",
    "bundle.refused": "No phone gets bundle {hash} any more",
    "bundle.current": "Bundle {hash} is now the bundle of every {abi} phone",
    "toolchain.added": "Toolchain {subject} is added",
    "toolchain.removed": "Toolchain {subject} is removed",
    "poison.reported": "{what} of {user} killed its process on {device}",
    "poison.forgotten": "{user} allows {subject} again",
    "clock.jumped": "The host's clock was set, by {seconds}",
    "results.stopped": "Results of {subject} on {device} stopped after {job}",
    "results.resumed": "Results of {subject} on {device} are no longer late",
    "store.full": "The database cannot be written",
    "store.back": "The database can be written again",
    "config.reloaded": "{by} reloaded the configuration[: {applied}][; after a restart: {restart}]",
    "config.refused": "{by} could not reload the configuration",
    "daemon.started": "The daemon of farm {version} serves",
}  # fmt: skip
_STATES = {"device": "{subject} is {state}", "job": "{subject} of {user} is {state}"}


def event_words(event: Mapping[str, Any]) -> str:
    """An event, as on the wire, as a sentence without its full stop.

    An unknown kind is read as the state of its device or job; of another topic it is the kind, the subject, the reason.
    """
    kind, data = event["kind"], event["data"]
    topic, _, state = kind.partition(".")
    values: defaultdict[str, str] = defaultdict(str)
    values |= {name: _plain(name, value) for name, value in data.items()}
    values |= {"subject": _plain("subject", event["subject"]), "more": _more(event)}
    if (waited_s := _number(data.get("waited_s"))) is not None and waited_s < 1:  # at once
        values["waited_s"] = ""
    sentence = _SENTENCES.get(f"{kind} {data.get('service')}") or _SENTENCES.get(kind)
    if sentence is None and topic in _STATES:
        sentence, values["state"] = _STATES[topic], state
    why = next((values[name] for name in WHY if values[name]), "")
    if sentence is None:
        return ": ".join(filter(None, (f"{kind} {values['subject']}", why)))
    text = re.sub(r"\[([^]]*)\]", lambda found: _whole(found[1], values), sentence)
    text = text.format_map(defaultdict(lambda: "?", {name: value for name, value in values.items() if value.strip()}))
    return f"{text}: {why}" if why else text


def _whole(part: str, values: Mapping[str, str]) -> str:
    """A part in brackets; "" if a name in it has no value."""
    return part if all(values[name] for name in re.findall(r"{(\w+)}", part)) else ""


def _plain(name: str, value: object, depth: int = 0) -> str:
    if isinstance(value, Mapping | list | tuple) and depth == MAX_DEPTH:
        return "..."
    if isinstance(value, Mapping):
        return _plain(name, value.get("message") or value.get("cause"), depth + 1)
    if isinstance(value, list | tuple):
        return ", ".join(filter(None, (_plain(name, each, depth + 1) for each in value)))
    if (number := _number(value)) is not None and "bytes" in name:
        return size_words(number)
    if number is not None and name.removesuffix("s").endswith(("_", "second")):
        sign = "-" * (number < 0)
        return f"{sign}{format_duration(abs(number))}" if abs(number) >= 60 else f"{number:.1f} s"
    text = "" if value is None else str(value)
    return short_hash(text) if re.fullmatch(r"[0-9a-f]{64}", text) else text


def _number(value: object) -> float | None:
    """None: it is no number; infinite if no float holds it."""
    try:
        return float(value) if isinstance(value, int | float) else None
    except OverflowError:
        return math.inf


def _more(event: Mapping[str, Any]) -> str:
    """The time from an event to the end of its lease; "" if it names none."""
    try:
        left = datetime.fromisoformat(event["data"].get("expires_at")) - datetime.fromisoformat(event["at"])
    except (TypeError, ValueError):
        return ""
    return format_duration(left.total_seconds())
