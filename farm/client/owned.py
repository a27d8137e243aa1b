"""Jobs that end with the block that submitted them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from farm.client.model import Submitted, names_of
from farm.core.errors import DaemonUnreachableError

if TYPE_CHECKING:
    from farm.client.asynchronous import AsyncClient
    from farm.jobs.specs import AnySpec


@asynccontextmanager
async def owned(client: AsyncClient, spec: AnySpec) -> AsyncIterator[Submitted]:
    """Submit `spec`; its jobs are cancelled when the block is given up (Ctrl-C too), wherever it was by then.

    Raises:
        NoPhoneError: no phone matches.
        DaemonUnreachableError: the daemon is away, so that the jobs stay queued.
    """
    submitting = asyncio.ensure_future(client.submit(spec, must_match=True))
    try:
        yield await asyncio.shield(submitting)
    except BaseException:
        if not submitting.done() or submitting.exception() is None:
            submitted = await submitting
            try:
                await client.cancel(submitted)
            except DaemonUnreachableError as error:
                hint = f"once it is back: farm job cancel {' '.join(names_of(submitted))}"
                raise DaemonUnreachableError(f"{error.message}; jobs stay queued", hint=hint) from error
        raise
