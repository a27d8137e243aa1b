"""The web page over made-up verbs: what each answers, who asked for what, accounts by their token."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from html import unescape
from html.parser import HTMLParser
from typing import Any

import httpx

from farm.common.errors import HostUnreachableError, NoSuchDeviceError
from farm.common.events import EventLog
from farm.config import WebConfig
from farm.control.callers import Accounts, Caller, Role
from farm.control.router import Answer
from farm.control.verbs.fleet import device_details, device_row
from farm.head.queue.model import NoSuchJobError
from farm.model.device import DeviceView
from farm.store.accounts import AccountRecord
from farm.web.app import create_app
from tests.support.reads import ReadsHere
from tests.support.web_rows import NOW, SHA, host, job, told, view

BASE = "http://127.0.0.1:9191"


async def exposition(accept: str) -> tuple[bytes, str]:
    return b"farm_up 1\n", "text/plain; version=0.0.4; charset=utf-8"


def text_of(text: str) -> str:
    """What a page says, without its tags."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", text)).split())


def plots(text: str) -> list[Any]:
    """The plots of a page as the browser gets them."""
    return [json.loads(unescape(found)) for found in re.findall(r"data-plot='([^']*)'", text)]


class Readable(HTMLParser):
    """A page's content as lines: words, [links](address), <form action>, {fields=values}, ((tones)), plots as JSON."""

    INLINE = re.compile("a|b|code|em|i|label|option|path|polyline|rect|small|span|strong|sub|sup|td|th|time")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.lines, self.links = [""], []
        self.inside = {"main"} - ({"main"} if "<main" in text else set())  # a part is all content
        self.feed(text)

    def __str__(self) -> str:
        text = "\n".join(line for line in (" ".join(line.split()) for line in self.lines) if line)
        return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", _unless_now, text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        at = dict(attrs)
        if tag in ("main", "title"):
            self.inside.add(tag)
        if not self.INLINE.fullmatch(tag):
            self.lines.append("")
        if not self.inside:
            return
        if found := re.search(r"tone-\w+|\bfigure\b", at.get("class") or ""):
            self.lines[-1] += f" (({found[0].removeprefix('tone-')})) "
        if tag == "a":
            self.links.append(at.get("href"))
            self.lines[-1] += f" [{label}: " if (label := at.get("aria-label")) else " ["
        elif tag == "form":
            self.lines[-1] += f"<form {at.get('action') or at.get('method') or ''}>"
        elif at.get("name") or at.get("value"):
            value = "..." if at.get("name") == "csrf" else at.get("value") or ""
            chosen = "".join(f" {word}" for word in ("checked", "selected") if word in at)
            self.lines[-1] += f" {{{at.get('name', '')}={value}{chosen}}} "
        if "data-plot" in at:
            plot = json.loads(at["data-plot"] or "")
            self.lines += [json.dumps(panel, ensure_ascii=False) for panel in plot.pop("panels")]
            self.lines += [json.dumps(plot, ensure_ascii=False), ""]

    def handle_endtag(self, tag: str) -> None:
        if tag == "a" and self.inside:
            self.lines[-1] += f"]({self.links.pop()})"
        if tag in ("td", "th", "option", "time"):
            self.lines[-1] += " " if tag in ("option", "time") else " | "
        elif not self.INLINE.fullmatch(tag):
            self.lines.append("")
        self.inside.discard(tag)

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.lines[-1] += data.replace("\n", " ")


def _unless_now(moment: re.Match[str]) -> str:
    age = datetime.now(UTC) - datetime.strptime(moment[0], "%Y-%m-%d %H:%M:%S UTC").replace(tzinfo=UTC)
    return "(now)" if abs(age.total_seconds()) < 3600 else moment[0]


class Desk:
    """Answers verbs from `answers` (a mapping or a function of the fields); keeps what was asked."""

    def __init__(self, **answers: Any) -> None:
        self.answers: dict[str, Any] = {
            "fleet.trends": {"celsius": {}, "span_s": 3600.0},
            "lease.list": {"now": NOW.isoformat(), "leases": [], "waiting": [], "waiting_more": 0},
            "job.list": {"now": NOW.isoformat(), "jobs": [], "more": False, "before": ""},
            "device.list": answers.get("status"),
            **answers,
        }
        self.asked: list[tuple[Caller, str, Mapping[str, Any]]] = []
        self.audited: list[tuple[str, str, str]] = []  # who, what, how it ended

    async def ask(self, caller: Caller, kind: str, fields: Mapping[str, Any]) -> Answer:
        self.asked.append((caller, kind, fields))
        answer = self.answers[kind]
        found = answer(**fields) if callable(answer) else answer
        return found if isinstance(found, Answer) else Answer(found)

    async def audit(self, caller: Caller, kind: str, about: str, outcome: str) -> None:
        self.audited.append((caller.origin, kind, outcome))

    @property
    def kinds(self) -> list[str]:
        """The verbs that were asked, in order."""
        return [kind for _, kind, _ in self.asked]

    def asked_last(self, kind: str) -> Mapping[str, Any]:
        """The fields of the last request for a verb."""
        return next(fields for _, asked, fields in reversed(self.asked) if asked == kind)


class AccountStore(ReadsHere):
    """Accounts in memory."""

    def __init__(self) -> None:
        self.records: dict[str, AccountRecord] = {}

    def all(self) -> list[AccountRecord]:
        return list(self.records.values())

    def get(self, name: str) -> AccountRecord | None:
        return self.records.get(name)

    def by_curve_key(self, curve_key: str) -> AccountRecord | None:
        return None

    def by_token(self, token_sha256: str) -> AccountRecord | None:
        return next((each for each in self.records.values() if each.token_sha256 == token_sha256), None)

    async def save(self, record: AccountRecord) -> None:
        self.records[record.name] = record

    async def used(self, name: str, at: datetime) -> None:
        pass


class Page:
    """A browser without scripts at the page."""

    def __init__(
        self, desk: Desk | None = None, config: WebConfig | None = None, *, lab: bool = False, metrics: Any = exposition
    ) -> None:
        self.desk = desk or Desk(status=status())
        self.events = EventLog(1)
        self.clock = 1000.0
        self.accounts = Accounts(AccountStore(), clock=lambda: self.clock)
        self.app = create_app(self.desk, self.accounts, self.events, metrics, config or WebConfig(), lab=lab)
        self.web = self.app.state.web
        self.client = httpx.AsyncClient(
            transport=httpx.ASGITransport(self.app, raise_app_exceptions=False), base_url=BASE, follow_redirects=False
        )

    async def account(self, name: str, role: Role) -> str:
        """A new account; returns its token."""
        return (await self.accounts.new(name, role, web=True, by="a test")).token

    async def sign_in(self, name: str = "ann", role: Role = Role.OPERATOR) -> str:
        """Sign in; returns the session's csrf."""
        answer = await self.client.post("/sign-in", data={"token": await self.account(name, role), "to": "/"})
        assert answer.status_code == 303, answer.text
        return self.session.csrf

    @property
    def session(self) -> Any:
        """The one session there is."""
        (session,) = self.web.sign_ins._sign_ins.values()
        return session

    async def get(self, path: str, **headers: str) -> httpx.Response:
        return await self.client.get(path, headers=headers)

    async def html(self, path: str) -> str:
        """A page that is there."""
        answer = await self.get(path)
        assert answer.status_code == 200, answer.text
        return answer.text

    async def words(self, path: str) -> str:
        """What a page says."""
        return text_of(await self.html(path))

    async def part(self, path: str) -> str:
        """What changes of a page that is open."""
        answer = await self.client.get(path, headers={"hx-request": "true"})
        return answer.text

    async def post(self, path: str, form: Mapping[str, Any] | None = None, **headers: str) -> httpx.Response:
        """Send a form as whoever is signed in."""
        csrf = {"csrf": self.session.csrf} if len(self.web.sign_ins) else {}
        return await self.client.post(path, data={**csrf, **(form or {})}, headers=headers)

    async def order(self, path: str, form: Mapping[str, Any] | None = None) -> tuple[int, str | None]:
        """Send a form; returns the answer's status and where it leads."""
        answer = await self.post(path, form)
        return answer.status_code, answer.headers.get("location")

    def kinds(self) -> list[str]:
        """The verbs that were asked, in order."""
        return self.desk.kinds


@asynccontextmanager
async def page(desk: Desk | None = None, config: WebConfig | None = None, *, lab: bool = False) -> Any:
    """A page and its client."""
    opened = Page(desk, config, lab=lab)
    async with opened.client:
        yield opened


def status(*views: DeviceView, **facts: Any) -> dict[str, Any]:
    """What `status` answers."""
    return {
        "devices": [device_row(each, facts.get("holder", ""), NOW) for each in views],
        "problems": facts.get("problems", []),
        "draining": facts.get("draining", False),
        "tracker": {"host": "127.0.0.1", "port": 9190},
    }


def device_desk(shown: DeviceView, **facts: Any) -> Desk:
    """A desk that knows one device."""

    def only(device: str, **_: Any) -> None:
        if device != shown.name:
            raise NoSuchDeviceError(f"there is no device {device!r}", hint=f"did you mean {shown.name}?")

    explained = {
        "classes": {"interactive": {"open": False, "reason": facts.get("why", ""), "opens_in_s": None}},
        "recovery": {
            "under_way": None, "skipped": [], "last_day": facts.get("actions", []), "left_today": {"reboot": 3},
        },
        "quarantine": facts.get("quarantine"), "probe": {"age_s": 1.0, "findings": []}, "hint": facts.get("hint", ""),
        "place": None, "beside": [],
    }  # fmt: skip
    answers = {
        "device.show": lambda device: only(device) or device_details(shown, facts.get("holder", ""), NOW),
        "explain": lambda what, name: only(name) or {"device": explained, "lines": facts.get("lines", [])},
        "device.readings": lambda device, seconds: {"device": device, "at": [], "columns": facts.get("columns", [])},
        "events.newest": lambda subject, limit, topics=(): {"events": facts.get("events", [])},
        "status": status(shown),
    }
    return Desk(**answers)


def lab_desk(*jobs: dict[str, Any]) -> Desk:
    """A desk of a lab of three hosts, each with a phone; the third is lost."""
    hosts = [host("lab1"), host("lab2"), host("lab3", "lost", silent_s=3720.0, hint="start its daemon")]
    found = status(view("near"), view("far"), view("away", temperature_c=31.5))
    devices = [{**each, "host": at["name"]} for each, at in zip(found["devices"], hosts, strict=True)]

    def show(**_: Any) -> None:
        raise HostUnreachableError("host lab3, which has away, is lost")

    answers = {
        "status": {**found, "host": "lab1", "hosts": hosts, "devices": devices},
        "host.list": {"own": "lab1", "hosts": hosts, "tokens": [], "problems": []},
        "job.list": {"now": NOW.isoformat(), "jobs": list(jobs), "before": ""},
        "job.steps": lambda host: {"steps": {"bench-1": {"step": "timing", "done": 3, "of": 9, "eta_s": None}}},
        "fleet.trends": lambda host="": {"celsius": {"far": [30.0, 40.0]} if host == "lab2" else {}, "span_s": 3600.0},
        "device.show": show,
        "host.drain": {"host": "lab2", "leases": []},
    }
    return Desk(**answers)


def job_desk(shown: dict[str, Any] | None = None, raw: bytes = b"{}", **answers: Any) -> Desk:
    """A desk that knows one job, of which `raw` is the artifact that its result names."""
    shown = shown or told(job())
    known = shown["job"]["id"]

    def show(job: str) -> dict[str, Any]:
        if not known.startswith(job):
            raise NoSuchJobError(f"there is no job {job!r}")
        return shown

    def artifact(sha256: str, offset: int) -> Answer:  # in two parts
        assert sha256 == SHA
        return Answer({"total_bytes": len(raw)}, (raw[offset : offset + max(1, len(raw) // 2)],))

    reasons = [{"device": "pixel", "reason": "is leased"}]
    known_answers = {
        "job.show": show,
        "job.log_tail": {"lines": [], "start": 0, "next": 0, "number": 0},
        "job.list": {"now": NOW.isoformat(), "jobs": [shown["job"]], "more": False, "before": ""},
        "explain": {"estimate_s": 60.0, "waits": "", "limits": [], "devices": reasons},
        "artifact.get": artifact,
        "device.readings": {"device": "pixel", "at": [], "columns": []},
    }
    return Desk(**known_answers | answers)
