"""What becomes of tasks that nobody awaits."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

log = logging.getLogger(__name__)


def tell_failure(task: asyncio.Task[Any]) -> None:
    """A task's done callback: its failure goes to the log."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("%s failed inside farm", task.get_name(), exc_info=error)
