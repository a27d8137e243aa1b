"""The fleet as table or cards, the page of a device with an operator's orders, and the runtime bundles on devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from starlette.responses import JSONResponse, Response

from farm.common.durations import format_duration, reading_age
from farm.common.errors import HostUnreachableError, UserError
from farm.common.files import short_hash
from farm.common.selector import natural
from farm.common.tones import tone
from farm.devices.health.series import COARSE_S, FINE_S
from farm.model.device import LIFE_EVENTS, Service
from farm.model.event_words import WHY, event_words
from farm.web.hosts import last_facts
from farm.web.page import PageRoute, ask, done, form_of, render, web_of
from farm.web.rendering import Value, in_order, segment

router = APIRouter(route_class=PageRoute)
SEARCHED = ("name", "host", "serial", "soc", "gpu", "model", "market_name", "holder", "reason", "pool")
WORST_FIRST = ("bad", "warn", "off")  # tones of states; then devices with findings or not adopted yet, then the rest
MAX_HELD = 500  # leases whose jobs are looked up


TABLE_ABOVE = 24  # devices: more are a table unless the reader chooses cards
COLUMNS: Mapping[str, Value] = {
    "name": lambda device: natural(device["name"]),
    "state": lambda device: device["state"],
    "host": lambda device: natural(device.get("host", "")),
    "soc": lambda device: device["soc"].lower(),
    "temperature": lambda device: device["temperature_c"],
    "battery": lambda device: device["battery_percent"],
    "holder": lambda device: device["holder"].lower(),
}
GROUPS: Mapping[str, Value] = {
    "host": lambda device: device.get("host", ""),
    "soc": lambda device: device["soc"],
    "state": lambda device: state_group(device["state"]),
}


@dataclass(frozen=True, slots=True)
class DeviceFilter:
    """Which devices to show, and how: the page's address. Empty fields leave nothing out and change nothing."""

    pool: str = ""
    state: str = ""
    text: str = ""
    sort: str = ""  # a column of `COLUMNS`, with `-` before it from high to low; "": what needs a person first
    group: str = ""  # one of `GROUPS`
    view: str = ""  # "table" or "cards"; "": by the number of devices

    def link(self, **changes: str) -> str:
        """The address of the page with some fields changed."""
        asked = {name: value for name, value in asdict(replace(self, **changes)).items() if value}
        return "/?" + urlencode(asked) if asked else "/"

    def in_order(self, devices: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """The devices sorted; those without the value come last."""
        return in_order(sorted(devices, key=wall_order), COLUMNS, self.sort)

    def grouped(self, devices: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[Mapping[str, Any]]]]:
        """Groups by name, each in the order of the devices; one without a name if nothing is grouped."""
        value = GROUPS.get(self.group)
        if value is None:
            return [("", list(devices))]
        found: dict[str, list[Mapping[str, Any]]] = {}
        for device in devices:
            found.setdefault(value(device) or "not known", []).append(device)
        return sorted(found.items(), key=lambda each: natural(each[0]))

    def matches(self, device: Mapping[str, Any]) -> bool:
        """Whether the device is one of them."""
        if self.pool and device["pool"] != self.pool:
            return False
        if self.state and state_group(device["state"]) != self.state:
            return False
        words = " ".join((*(str(device.get(name, "")) for name in SEARCHED), *device["aliases"])).lower()
        return all(word in words for word in self.text.lower().split())


def state_group(state: str) -> str:
    """The word people filter by: `busy, draining` counts as busy."""
    return state.partition(",")[0]


def groups(devices: Sequence[Mapping[str, Any]]) -> list[tuple[str, int]]:
    """States with the number of devices in each, the most frequent first."""
    return sorted(Counter(state_group(each["state"]) for each in devices).items(), key=lambda each: (-each[1], each[0]))


def wall_order(device: Mapping[str, Any]) -> tuple[int, Any]:
    """The order of devices on the wall: those that need a person come first."""
    worst = tone(device["state"])
    noticed = bool(device["findings"]) or not device["adopted"]
    rank = WORST_FIRST.index(worst) if worst in WORST_FIRST else len(WORST_FIRST) + (not noticed)
    return rank, natural(device["name"])


def time_left(lease: Mapping[str, Any], job: Mapping[str, Any], now: datetime) -> str:
    """How long a lease lasts yet: by its search's pace, else at most until it expires; "" when that is unknown."""
    eta_s = (job.get("progress") or {}).get("eta_s")
    if eta_s is not None:
        return f"about {format_duration(eta_s)} left"
    if lease["expires_at"] is None:
        return ""
    seconds = (datetime.fromisoformat(lease["expires_at"]) - now).total_seconds()
    return f"at most {format_duration(max(0.0, seconds))} left"


def reading_note(device: Mapping[str, Any]) -> str:
    """Why a device's readings are not of now: `2h 5m ago`; "": they are."""
    age = reading_age(device["read_age_s"])
    return f"{age} ago" if age else "before it was gone" * (device["life"] == "gone")


def title_of(states: Sequence[tuple[str, int]]) -> str:
    """The states that need a person, for the tab's title; "": none does."""
    return ", ".join(f"{count} {state}" for state, count in states if tone(state) == "bad")


async def _work(request: Request, only: str = "") -> dict[str, dict[str, Any]]:
    """The work of each leased device, or of one: its job and the time left."""
    answer = await ask(request, "lease.list")
    leases = [each for each in answer["leases"] if only in ("", each["device"])]
    ids = [lease["job"] for lease in leases if lease["job"]][:MAX_HELD]
    listed = (await ask(request, "job.list", jobs=ids, limit=MAX_HELD))["jobs"] if ids else []
    jobs, now = {row["id"]: row for row in listed}, datetime.fromisoformat(answer["now"])
    held = [(lease, jobs.get(lease["job"], {})) for lease in leases]
    return {lease["device"]: {"job": job, "left": time_left(lease, job, now)} for lease, job in held}


async def _trends(request: Request) -> Mapping[str, Any]:
    """The temperatures of the last hour of the devices of all hosts."""
    here: Mapping[str, Any] = (await ask(request, "fleet.trends"))["celsius"]
    return (
        {**here, **await web_of(request).of_other_hosts(("fleet.trends", "celsius"))} if web_of(request).lab else here
    )


async def _wall(request: Request, wanted: DeviceFilter) -> dict[str, Any]:
    status = await ask(request, "status")
    devices, states = status["devices"], groups(status["devices"])
    shown = wanted.in_order([device for device in devices if wanted.matches(device)])
    table = wanted.view == "table" or (not wanted.view and len(devices) > TABLE_ABOVE)
    return {
        "wanted": wanted,
        "table": table,
        "title": title_of(states),
        "work": await _work(request) if any(device["holder"] for device in devices) else {},
        "groups": wanted.grouped([{**device, "old": reading_note(device)} for device in shown]),
        "shown": len(shown),
        "trends": {} if table else await _trends(request),
        "states": states,
        "pools": sorted({device["pool"] for device in devices} - {""}),
        "total": len(devices),
        "problems": status["problems"],
        "hosts": status.get("hosts", ()),
        "draining": status["draining"],
        "tracker": status["tracker"],
    }


Text = Annotated[str, Query(max_length=200)]


@router.get("/")
async def wall(
    request: Request,
    pool: Text = "",
    state: Text = "",
    text: Text = "",
    sort: Text = "",
    group: Text = "",
    view: Literal["", "table", "cards"] = "",
) -> Response:
    """The page."""
    wanted = DeviceFilter(pool, state, text, sort, group, view)
    return render(request, "fleet.html", part="fleet_wall.html", **await _wall(request, wanted))


LOG_LINES = 60
MAX_EVENTS = 200  # read, to show some of them
LIFE_SHOWN = 25
SESSIONS_SHOWN = 15
JOBS_SHOWN = 8


def sessions_of(events: Sequence[Mapping[str, Any]], *, held: bool) -> list[dict[str, Any]]:
    """Sessions from their events, newest first. The newest is open if it has no end and the device is leased."""
    found: list[dict[str, Any]] = []
    ended: set[str] = set()
    for event in events:
        data, kind = event["data"], event["kind"]
        if kind == "session.ended":
            ended.add(data["session"])
            outcome = ": ".join(filter(None, (data["outcome"], data.get("detail", ""))))
            found.append({**data, "at": event["at"], "outcome": outcome})
        elif kind == "session.opened" and held and not found and data["session"] not in ended:
            found.append(
                {**data, "at": event["at"], "outcome": "open", "seconds": None, "bytes_up": 0, "bytes_down": 0}
            )
    return found[:SESSIONS_SHOWN]


def summary_of(columns: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each column of readings in three figures: the plots of the scripts, as text."""
    found = []
    for column in columns:
        known = [value for value in column["values"] if value is not None]
        if known:
            name = f"{column['quantity']} {column['name']}" if column["quantity"] != column["name"] else column["name"]
            figures = {"latest": known[-1], "lowest": min(known), "highest": max(known)}
            found.append({"name": name, "unit": column["unit"], **figures})
    return found


def log_line(event: Mapping[str, Any], above: Sequence[str] = ()) -> str:
    """An event as a sentence, without the texts `above`, which the page shows already."""
    data = dict(event["data"])
    for name in WHY:
        if isinstance(text := data.get(name), str) and text and repeats(text, *above):
            data[name] = "as above"
    return event_words({**event, "data": data})


def classes_of(classes: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, bool, str]]:
    """Classes of leases that are open, or closed for one reason, together: their names, whether open, the reason."""
    alike: dict[tuple[bool, str], list[str]] = {}
    for name, each in classes.items():
        alike.setdefault((each["open"], "" if each["open"] else each["reason"]), []).append(name)
    return [(", ".join(names), is_open, reason) for (is_open, reason), names in alike.items()]


def repeats(text: str, *above: str) -> bool:
    """Whether a text says no more than a text above it; "" says nothing."""
    return not text or any(each and (text in each or each.removesuffix("…") in text) for each in above)


async def _now(request: Request, name: str) -> dict[str, Any]:
    device = await ask(request, "device.show", device=name)
    why = await ask(request, "explain", what="device", name=name)
    readings = await ask(request, "device.readings", device=name, seconds=FINE_S)
    subject, kept = device["name"], (why["device"]["quarantine"] or {}).get("cause", "")
    log = (await ask(request, "events.newest", subject=subject, limit=MAX_EVENTS))["events"]
    steps = (await ask(request, "events.newest", subject=subject, limit=MAX_EVENTS, topics=["device"]))["events"]
    return {
        "device": device,
        "old": reading_note(device),
        "doing": (await _work(request, subject)).get(subject) if device["holder"] else None,
        "jobs": (await ask(request, "job.list", device=subject, limit=JOBS_SHOWN))["jobs"],
        "why": why["device"],
        "classes": classes_of(why["device"]["classes"]),
        "reason": "" if repeats(device["reason"], kept) else device["reason"],
        "shown_above": lambda text: repeats(text, kept, device["reason"]),
        "lines": why["lines"],
        "readings": summary_of(readings["columns"]),
        "log": [{**event, "line": log_line(event, (kept, device["reason"]))} for event in log[:LOG_LINES]],
        "steps": [event for event in steps if event["kind"] in LIFE_EVENTS][:LIFE_SHOWN],
        "sessions": sessions_of(log, held=bool(device["holder"])),
    }


@router.get("/devices/{name}")
async def device_page(request: Request, name: str) -> Response:
    """The page."""
    try:
        return render(request, "device.html", part="device_now.html", **await _now(request, name))
    except HostUnreachableError as error:
        return await last_facts(request, name, error)


@router.get("/devices/{name}/readings")
async def readings(
    request: Request, name: str, seconds: Annotated[float, Query(gt=0, le=COARSE_S)] = FINE_S
) -> Response:
    """The data of the page's plots."""
    return JSONResponse(dict(await ask(request, "device.readings", device=name, seconds=seconds)))


# --- actions ------------------------------------------------------------------------------------------------------


def _page_of(name: str) -> str:
    return f"/devices/{segment(name)}"


@router.post("/devices/{name}/service")
async def set_service(request: Request, name: str) -> Response:
    """Drain, maintain or release a device."""
    answer = await ask(request, "device.service", device=name, service=(await form_of(request)).get("service", ""))
    service = Service(answer["service"])
    notice = f"{answer['name']} is {'back ' if service is Service.IN else ''}{service.words}."
    if answer["released"]:
        notice += f" Its quarantine is over ({answer['quarantine']}); it is checked before it is leased again."
    elif answer["quarantine"]:
        notice += f" It also stays in quarantine: {answer['quarantine']}."
    if answer["holder"] and answer["service"] != "in":
        notice += f" {answer['holder']} still has it; it is free when that lease ends."
    return done(
        request, " ".join((notice, *(f"Warning: {each}." for each in answer["still"]))), _page_of(answer["name"])
    )


@router.post("/devices/add")
async def add(request: Request) -> Response:
    """Add a network phone."""
    answer = await ask(request, "device.add", address=(await form_of(request)).get("address", "").strip())
    return done(request, f"{answer['address']} is added; it appears when adb has connected to it.", "/")


@router.post("/drain/end")
async def end_drain(request: Request) -> Response:
    """Let this host's phones be leased again."""
    await ask(request, "host.drain", on=False)
    return done(request, "Phones are handed out again.", "/")


@router.post("/devices/{name}/adopt")
async def adopt(request: Request, name: str) -> Response:
    """Adopt a device."""
    form = await form_of(request)
    answer = await ask(
        request, "device.adopt", device=name, pool=form.get("pool", ""), rename=form.get("rename", "").strip()
    )
    return done(request, f"{answer['name']} is adopted.", _page_of(answer["name"]))


@router.post("/devices/{name}/quarantine")
async def quarantine(request: Request, name: str) -> Response:
    """Quarantine a device."""
    form = await form_of(request)
    answer = await ask(request, "device.quarantine", device=name, reason=form.get("reason", ""), force="force" in form)
    ended = f" {answer['holder']} had it: that lease ends." if answer["holder"] else ""
    return done(request, f"{answer['name']} is in quarantine: {answer['reason']}.{ended}", _page_of(answer["name"]))


@router.post("/devices/{name}/reboot")
async def reboot(request: Request, name: str) -> Response:
    """Reboot a device."""
    answer = await ask(request, "device.reboot", device=name, force="force" in await form_of(request))
    return done(request, f"{answer['name']} reboots.", _page_of(answer["name"]))


@router.post("/devices/{name}/power-cycle")
async def power_cycle(request: Request, name: str) -> Response:
    """Cut the power of a device for a moment."""
    answer = await ask(request, "device.power_cycle", device=name, force="force" in await form_of(request))
    beside = f" Also without power for a moment: {', '.join(answer['beside'])}." if answer["beside"] else ""
    return done(request, f"The power of {answer['name']} is cut for a moment.{beside}", _page_of(answer["name"]))


@router.get("/bundles")
async def bundles(request: Request) -> Response:
    """The page."""
    found = (await ask(request, "bundle.list"))["bundles"]
    devices = (await ask(request, "device.list"))["devices"]
    on: dict[str, list[str]] = {}
    for device in devices:
        if device["bundle"]:
            on.setdefault(device["bundle"], []).append(device["name"])
    return render(
        request,
        "bundles.html",
        bundles=found,
        on=on,
        toolchains=(await ask(request, "toolchain.list"))["toolchains"],
    )


@router.post("/bundles/{order}")
async def bundle_order(request: Request, order: str) -> Response:
    """Promote a bundle or roll it back."""
    if order not in ("promote", "rollback"):
        raise UserError(f"there is no order {order[:40]!r} for bundles", hint="orders: promote, rollback")
    answer = await ask(request, f"bundle.{order}", bundle=(await form_of(request)).get("bundle", ""))
    return done(request, f"Bundle {answer['name'] or short_hash(answer['hash'])} is {answer['state']} now.", "/bundles")
