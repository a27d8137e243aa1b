"""The web page over made-up verbs: what each answers, who asked for what, accounts by their token."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from html import unescape
from typing import Any

import httpx

from farm.common.errors import HostUnreachableError, NoSuchDeviceError
from farm.common.events import EventLog
from farm.config import WebConfig
from farm.control.callers import Accounts, Caller, Role
from farm.control.router import Answer
from farm.control.verbs.fleet import device_details, device_row
from farm.model.device import DeviceView, Life
from farm.store.accounts import AccountRecord
from farm.web.app import create_app
from tests.support.reads import ReadsHere

BASE = "http://127.0.0.1:9191"
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
Answering = Callable[..., Any]


async def exposition(accept: str) -> tuple[bytes, str]:
    """What /metrics answers."""
    return b"farm_up 1\n", "text/plain; version=0.0.4; charset=utf-8"


def text_of(text: str) -> str:
    """What a page says, without its tags."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", text)).split())


class Desk:
    """Answers verbs from `answers` (a mapping or a function of the fields); keeps what was asked."""

    def __init__(self, **answers: Any) -> None:
        self.answers: dict[str, Any] = {
            "fleet.trends": {"celsius": {}, "span_s": 3600.0},
            "lease.list": {"leases": [], "waiting": [], "waiting_more": 0},
            "job.list": {"jobs": [], "more": False, "before": ""},
            **answers,
        }
        self.asked: list[tuple[Caller, str, Mapping[str, Any]]] = []
        self.audited: list[tuple[str, str, str]] = []  # who, what, how it ended

    async def ask(self, caller: Caller, kind: str, fields: Mapping[str, Any]) -> Answer:
        """One verb."""
        self.asked.append((caller, kind, fields))
        answer = self.answers[kind]
        return Answer(answer(**fields) if callable(answer) else answer)

    async def audit(self, caller: Caller, kind: str, about: str, outcome: str) -> None:
        """What is written down without a verb."""
        self.audited.append((caller.origin, kind, outcome))


class AccountStore(ReadsHere):
    """Accounts in memory."""

    def __init__(self) -> None:
        self.records: dict[str, AccountRecord] = {}

    def all(self) -> list[AccountRecord]:
        """Every one."""
        return list(self.records.values())

    def get(self, name: str) -> AccountRecord | None:
        """By name."""
        return self.records.get(name)

    def by_curve_key(self, curve_key: str) -> AccountRecord | None:
        """Nobody has a key."""
        return None

    def by_token(self, token_sha256: str) -> AccountRecord | None:
        """By the token's hash."""
        return next((each for each in self.records.values() if each.token_sha256 == token_sha256), None)

    async def save(self, record: AccountRecord) -> None:
        """Keep."""
        self.records[record.name] = record

    async def used(self, name: str, at: datetime) -> None:
        """Nobody looks."""


class Page:
    """A browser without scripts at the page."""

    def __init__(self, desk: Desk, config: WebConfig | None = None, *, lab: bool = False) -> None:
        self.desk = desk
        self.events = EventLog(1)
        self.clock = 1000.0
        self.accounts = Accounts(AccountStore(), clock=lambda: self.clock)
        self.app = create_app(desk, self.accounts, self.events, exposition, config or WebConfig(), lab=lab)
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

    async def part(self, path: str) -> httpx.Response:
        """What changes of a page that is open."""
        return await self.client.get(path, headers={"hx-request": "true"})

    def kinds(self) -> list[str]:
        """The verbs that were asked, in order."""
        return [kind for _, kind, _ in self.desk.asked]


@asynccontextmanager
async def page(desk: Desk | None = None, config: WebConfig | None = None, *, lab: bool = False) -> Any:
    """A page and its client."""
    opened = Page(desk or Desk(status=status()), config, lab=lab)
    async with opened.client:
        yield opened


def view(name: str = "pixel", **facts: Any) -> DeviceView:
    """A device."""
    return DeviceView(**{"name": name, "serial": f"serial-{name}", "life": Life.READY, "adopted": True, **facts})


def status(*views: DeviceView, **facts: Any) -> dict[str, Any]:
    """What `status` answers."""
    return {
        "devices": [device_row(each, facts.get("holder", "")) for each in views],
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
            "under_way": None,
            "skipped": [],
            "last_day": facts.get("actions", []),
            "left_today": {"reboot": 3},
        },
        "quarantine": facts.get("quarantine"),
        "probe": {"age_s": 1.0, "findings": []},
        "hint": facts.get("hint", ""),
        "place": None,
        "beside": [],
    }
    return Desk(
        **{
            "device.show": lambda device: only(device) or device_details(shown, facts.get("holder", "")),
            "explain": lambda what, name: only(name) or {"device": explained, "lines": facts.get("lines", [])},
            "device.readings": lambda device, seconds: {
                "device": device,
                "at": [],
                "columns": facts.get("columns", []),
            },
            "events.newest": lambda subject, limit, topics=(): {"events": facts.get("events", [])},
            "status": status(shown),
        }
    )


def host(name: str, state: str = "ok", **facts: Any) -> dict[str, Any]:
    """A row of `host.list`."""
    return {
        "name": name, "state": state, "address": f"{name}:9194", "beat_at": None, "silent_s": 1.0, "phones": 1,
        "version": "0.1.0", "protocol": 3, "drained": "", "hint": "", **facts,
    }  # fmt: skip


def lab_desk(*jobs: dict[str, Any]) -> Desk:
    """A desk of a lab of three hosts, each with a phone; the third is lost."""
    hosts = [host("lab1"), host("lab2"), host("lab3", "lost", silent_s=3720.0, hint="start its daemon")]
    found = status(view("near"), view("far"), view("away", temperature_c=31.5))
    devices = [{**each, "host": at["name"]} for each, at in zip(found["devices"], hosts, strict=True)]

    def show(**_: Any) -> None:
        raise HostUnreachableError("host lab3, which has away, is lost")

    return Desk(
        **{
            "status": {**found, "host": "lab1", "hosts": hosts, "devices": devices},
            "host.list": {"own": "lab1", "hosts": hosts, "tokens": [], "problems": []},
            "job.list": {"jobs": list(jobs), "before": ""},
            "job.steps": lambda host: {"steps": {"bench-1": {"step": "timing", "done": 3, "of": 9, "eta_s": None}}},
            "fleet.trends": lambda host="": {
                "celsius": {"far": [30.0, 40.0]} if host == "lab2" else {},
                "span_s": 3600.0,
            },
            "device.show": show,
            "host.drain": {"host": "lab2", "leases": []},
        },
    )


def lease(**facts: Any) -> dict[str, Any]:
    """A row of `lease.list`."""
    return {
        "id": "lease-1-1", "device": "pixel", "user": "bob", "source": "job", "lease_class": "interactive", "key": "",
        "job": "lease-7", "personal": True, "note": "", "held_s": 5.0, "expires_at": NOW.isoformat(), "session": "",
        "peer": "", **facts,
    }  # fmt: skip


__all__ = [
    "AccountStore",
    "Accounts",
    "Desk",
    "Page",
    "device_desk",
    "host",
    "lab_desk",
    "lease",
    "page",
    "status",
    "view",
]
