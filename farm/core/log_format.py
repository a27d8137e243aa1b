"""How the daemon's log spells what it is told: much of it are a phone's words, and people read it in a terminal."""

from __future__ import annotations

import logging

from farm.core.phone_text import escaped

MAX_CHARACTERS = 20_000  # of a record; a traceback has some thousand


class PlainFormatter(logging.Formatter):
    """No record colours or moves a terminal, and none looks like two: its further lines are indented."""

    def format(self, record: logging.LogRecord) -> str:
        """As logging formats it, then made plain."""
        said = super().format(record)
        if len(said) > MAX_CHARACTERS:
            said = f"{said[:MAX_CHARACTERS]}… ({len(said)} characters)"
        return escaped(said).replace("\n", "\n    ")
