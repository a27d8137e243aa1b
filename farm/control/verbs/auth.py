"""Verbs about accounts and the audit log, for operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, Field

from farm.common.errors import UserError
from farm.common.verbs import Count, verb
from farm.control.callers import Accounts, Role
from farm.control.listeners import CurveListener
from farm.control.server import ControlCall
from farm.control.verbs import VerbGroup, json_of
from farm.store.accounts import PAGE, AuditTable

Name = Annotated[str, Field(max_length=64)]


class AuthVerbs(VerbGroup):
    """Verbs over accounts and the audit log."""

    def __init__(self, accounts: Accounts, audit: AuditTable, remote: CurveListener | None) -> None:
        self._accounts = accounts
        self._audit = audit
        self._remote = remote

    @verb("auth.new", Role.OPERATOR, subject="name", order=("role",))
    async def new(
        self, call: ControlCall, name: Name, role: Literal["viewer", "user", "operator"], web: bool = False
    ) -> Mapping[str, Any]:
        """Make an account with a key for remote clients, or with `web` a token for the web page.

        The answer is the only place where its secret ever stands.
        """
        if not web and self._remote is None:
            raise UserError(
                "this farm has no control socket for remote clients",
                hint='set [control] listen = "tcp://127.0.0.1:9192" and restart; a token for the web page: --web',
            )
        made = await self._accounts.new(name, Role[role.upper()], web=web, by=call.caller.user)
        answer = {"name": made.account.user, "role": made.account.role.word}
        if web or self._remote is None:
            return answer | {"token": made.token}
        return answer | {
            "daemon": self._remote.endpoint,
            "server_key": self._remote.server_key,
            "public_key": made.public_key,
            "secret_key": made.secret_key,
        }

    @verb("auth.list", Role.OPERATOR, changes=False)
    async def list(self) -> Mapping[str, Any]:
        """Every account, and how many wrong keys and tokens there were since the start."""
        rows = [
            {
                **json_of(each, "name", "role", "made_at", "made_by", "used_at", "revoked_at"),
                "key": each.curve_key is not None,
                "token": each.token_sha256 is not None,
            }
            for each in await self._accounts.all()
        ]
        return {"accounts": rows, "wrong": {"keys": self._accounts.keys.wrong, "tokens": self._accounts.tokens.wrong}}

    @verb("auth.revoke", Role.OPERATOR, subject="name")
    async def revoke(self, name: Name) -> Mapping[str, Any]:
        """Take an account's key and token; the connections that use them end."""
        await self._accounts.revoke(name)
        return {"name": name}

    @verb("audit.list", Role.OPERATOR, changes=False)
    async def list_audit(
        self,
        user: Name = "",
        verb: Name = "",
        since: AwareDatetime | None = None,
        until: AwareDatetime | None = None,
        before: Count = 0,
        limit: Annotated[int, Field(ge=1, le=PAGE)] = 100,
    ) -> Mapping[str, Any]:
        """A page of the audit log, the latest first.

        `verb` may end with a dot: all that begin so. `before`: the `seq` of a row.
        """
        page = self._audit.page
        rows = await self._audit.in_thread(
            page, user=user, kind=verb, since=since, until=until, before=before, limit=limit
        )
        return {"rows": [asdict(row) | {"at": row.at.isoformat()} for row in rows]}
