"""Hosts of a lab with their links in this process; the rows of the host table are a list."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime

from farm.lab.identity import open_identity
from farm.lab.link import HostLink, LinkLimits
from farm.store.mailbox import HostRecord


class LinkedHosts:
    """The hosts and their rows."""

    def __init__(self, folder, limits: LinkLimits | None = None) -> None:
        self.folder = folder
        self.limits = limits or LinkLimits()
        self.rows: dict[str, HostRecord] = {}
        self.links: dict[str, HostLink] = {}

    async def read(self) -> tuple[HostRecord, ...]:
        return tuple(self.rows.values())

    def add(self, name: str, *, known: bool = True, listens: bool = True) -> HostLink:
        """A host; not `known`: it has no row."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        identity = open_identity(folder, name)
        link = self.links[name] = HostLink(identity, self.read, self.limits)
        if listens:
            link.listen("127.0.0.1", 0)
        link.ask_back_by(lambda other, token: self.links[other].dial_back(name, token))
        if known:
            now, address = datetime.now(UTC), f"127.0.0.1:{link.port}" if listens else ""
            self.rows[name] = HostRecord(name, now, 1, address=address, certificate=identity.certificate)
        return link

    def change(self, name: str, **fields) -> None:
        self.rows[name] = replace(self.rows[name], **fields)

    def remove(self, name: str) -> None:
        self.change(name, removed_at=datetime.now(UTC))


@asynccontextmanager
async def linked_hosts(folder, limits: LinkLimits | None = None):
    hosts = LinkedHosts(folder, limits)
    try:
        yield hosts
    finally:
        for link in hosts.links.values():
            await link.stop()
