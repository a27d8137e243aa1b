"""Verbs about accounts and the audit log, for operators."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, Field

from farm.control.accounts import Accounts
from farm.control.callers import Role
from farm.control.curve_entrance import CurveEntrance
from farm.control.forms import Count, Verbs, form, verb
from farm.control.server import ControlCall
from farm.core.errors import UserError
from farm.store.audit import PAGE, AuditTable

Name = Annotated[str, Field(max_length=64)]


@form
class NewAccount:
    """`auth.new`: a key for clients elsewhere, or with `web` a token for the web page."""

    name: Name
    role: Literal["viewer", "user", "operator"]
    web: bool = False


@form
class OneAccount:
    """`auth.revoke`."""

    name: Name


@form
class ListAudit:
    """`audit.list`: the latest first. `verb` may end with a dot: all that begin so. `before`: the `seq` of a row."""

    user: Name = ""
    verb: Name = ""
    since: AwareDatetime | None = None
    until: AwareDatetime | None = None
    before: Count = 0
    limit: Annotated[int, Field(ge=1, le=PAGE)] = 100


class AuthVerbs(Verbs):
    """Verbs over accounts and the audit log."""

    def __init__(self, accounts: Accounts, audit: AuditTable, elsewhere: CurveEntrance | None) -> None:
        self._accounts = accounts
        self._audit = audit
        self._elsewhere = elsewhere

    @verb("auth.new", Role.OPERATOR)
    async def new(self, asked: NewAccount, call: ControlCall) -> Mapping[str, Any]:
        """Make an account; the answer is the only place where its secret ever stands."""
        if not asked.web and self._elsewhere is None:
            raise UserError(
                "this farm has no door for clients elsewhere",
                hint='set [control] listen = "tcp://127.0.0.1:9192" and restart; a token for the web page: --web',
            )
        made = await self._accounts.new(asked.name, Role[asked.role.upper()], web=asked.web, by=call.caller.user)
        answer = {"name": made.account.name, "role": made.account.role.word}
        if asked.web or self._elsewhere is None:
            return answer | {"token": made.token}
        return answer | {
            "daemon": self._elsewhere.endpoint,
            "server_key": self._elsewhere.server_key,
            "public_key": made.public_key,
            "secret_key": made.secret_key,
        }

    @verb("auth.list", Role.OPERATOR)
    async def list(self) -> Mapping[str, Any]:
        """Every account, and how many wrong keys and tokens there were since the start."""
        rows = [
            {
                "name": each.name,
                "role": each.role,
                "key": each.curve_key is not None,
                "token": each.token_sha256 is not None,
                "made_at": each.made_at.isoformat(),
                "made_by": each.made_by,
                "used_at": each.used_at.isoformat() if each.used_at else None,
                "revoked_at": each.revoked_at.isoformat() if each.revoked_at else None,
            }
            for each in self._accounts.all()
        ]
        return {"accounts": rows, "wrong": {"keys": self._accounts.keys.wrong, "tokens": self._accounts.tokens.wrong}}

    @verb("auth.revoke", Role.OPERATOR)
    async def revoke(self, asked: OneAccount) -> Mapping[str, Any]:
        """Take an account's key and token; whoever is in with them is put out."""
        await self._accounts.revoke(asked.name)
        return {"name": asked.name}

    @verb("audit.list", Role.OPERATOR)
    async def list_audit(self, asked: ListAudit) -> Mapping[str, Any]:
        """A page of the audit log."""
        rows = await asyncio.to_thread(
            lambda: self._audit.page(
                user=asked.user, kind=asked.verb, since=asked.since, until=asked.until, before=asked.before,
                limit=asked.limit,
            )
        )  # fmt: skip
        return {"rows": [asdict(row) | {"at": row.at.isoformat()} for row in rows]}
