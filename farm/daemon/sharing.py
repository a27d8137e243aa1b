"""The link of this host to the other hosts of its lab, with the artifacts and logs that they share over it."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from farm.common.errors import Code, UserError
from farm.common.install import pip_install
from farm.config import FarmConfig
from farm.config.consistency import address_of
from farm.control.artifacts import ArtifactFolder
from farm.control.object_store import ObjectStore
from farm.control.second_copies import SecondCopies
from farm.daemon.persistence import Persistence
from farm.model.job import Attempt

if TYPE_CHECKING:  # a single host imports neither these modules nor their packages
    from farm.lab.artifacts import HostArtifacts
    from farm.lab.link import HostLink
    from farm.lab.logs import HostLogs


@dataclass(frozen=True, slots=True)
class Sharing:
    """Parts of the daemon for the other hosts of a lab."""

    link: HostLink
    artifacts: HostArtifacts
    copies: SecondCopies
    logs: HostLogs


def open_sharing(
    config: FarmConfig, stack: contextlib.AsyncExitStack, persistence: Persistence, folder: ArtifactFolder
) -> Sharing | None:
    """The parts; None: this is the only host of its database. More services join the link, then comes `begin_sharing`.

    Raises:
        UserError: a package is not installed, or there is no such object store.
        HostError: this host's key or certificate cannot be used.
    """
    if not config.lab.head_apart:
        return None
    try:
        from farm.lab.artifacts import HostArtifacts
        from farm.lab.identity import open_identity
        from farm.lab.link import HostLink
        from farm.lab.logs import HostLogs
    except ImportError as error:
        raise UserError(
            f"a lab of several hosts needs the package {error.name}, which is not installed",
            Code.BAD_CONFIG,
            hint=pip_install("lab", sys.executable),
        ) from error
    store, host = persistence.store, config.lab.host
    link = HostLink(open_identity(config.state_dir / "keys", host), store.mailbox.hosts)
    stack.push_async_callback(link.stop)
    objects = ObjectStore(config.lab.object_store) if config.lab.object_store else None
    artifacts = HostArtifacts(link, folder, store.artifact_copies, objects)
    copies = SecondCopies(folder, artifacts.pull, store.artifact_copies, host, artifacts.second_copy)
    store.on_problem(copies.store_problem)
    stack.push_async_callback(copies.close)

    async def host_of(attempt: Attempt) -> str:
        lease = await store.read(store.leases.get, attempt.lease)
        return "" if lease is None else lease.host

    return Sharing(link, artifacts, copies, HostLogs(link, persistence.logs, host_of))


async def begin_sharing(config: FarmConfig, persistence: Persistence, sharing: Sharing) -> None:
    """Listen for the other hosts, and publish address and certificate in the host's row.

    Raises:
        HostError: the port is taken, or the database is away.
    """
    link, address = sharing.link, ""
    if (listen := address_of(config.lab.listen)) is not None:
        link.listen(*listen)
        shown = f"[{listen[0]}]" if ":" in listen[0] else listen[0]
        address = f"{shown}:{link.port}"
    publish = persistence.store.mailbox.publish
    await publish(config.lab.host, address, link.identity.certificate, config.lab.advertise)
