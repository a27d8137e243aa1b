"""What keeps a database from being written, in words: told apart by the engine's codes, never by its texts."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

ROOM_HINT = "free disk space; farm notices by itself and goes on"
PRIMARY_CODE = 0xFF  # SQLite's extended codes carry their primary one in the low byte (sqlite.org/rescode.html)
_SQLITE = {
    sqlite3.SQLITE_FULL: ("the disk is full", ROOM_HINT),
    sqlite3.SQLITE_IOERR: ("the disk under it failed", "look at the host's kernel log (dmesg)"),
    sqlite3.SQLITE_READONLY: ("it is read-only", "is its file system mounted read-only? farm goes on once it is not"),
    sqlite3.SQLITE_CANTOPEN: ("its file cannot be opened", "is the state folder still there, and farm's own?"),
    sqlite3.SQLITE_CORRUPT: ("it is damaged", "stop farm, then: farm store check"),
    sqlite3.SQLITE_NOTADB: ("it is damaged", "stop farm, then: farm store check"),
    sqlite3.SQLITE_BUSY: ("another program keeps it locked", "close other programs that have it open (sqlite3?)"),
    sqlite3.SQLITE_NOMEM: ("the host is out of memory", "end what needs so much of it"),
}
_SERVER = {  # by SQLSTATE or its class (PostgreSQL manual, appendix A)
    "53": ("the database server has no room or memory left", ROOM_HINT),
    "08": ("the database server cannot be reached", "is it running? farm goes on once it answers"),
    "57014": ("the database server took too long", "is it overloaded, or does somebody hold a lock there?"),
    "57": ("the database server is stopping", "farm goes on once it is back"),
    "58": ("the database server's disk failed", "look at its log"),
    "25006": ("the database server is read-only", "is it a standby? [store] url must name the primary"),
    "XX": ("the database server is damaged", "look at its log"),
}
GONE = ("its file was removed or replaced", "put it back, or restart farm to begin with what is there")
UNREACHABLE = _SERVER["08"]


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why nothing can be written, and what to do."""

    reason: str
    hint: str
    evidence: str = ""

    def __str__(self) -> str:
        return f"the database cannot be written: {self.reason} ({self.hint})"


class FileGoneError(OSError):
    """The database's file is not where it was opened any more."""


def trouble_of(error: BaseException) -> Trouble | None:
    """What an error says of the database as a whole; None when it is about one statement."""
    for each in _chain(error):
        if isinstance(each, FileGoneError):
            return Trouble(*GONE, evidence=str(each))
        found = None
        if isinstance(each, DBAPIError):
            found = _of_driver(each)
        elif isinstance(each, sqlite3.Error):  # of a statement outside the engine's transactions (VACUUM)
            found = _of_sqlite(each)
        if found is not None:
            return found
    return None


def _of_driver(error: DBAPIError) -> Trouble | None:
    said = error.orig
    if isinstance(said, sqlite3.Error):
        return _of_sqlite(said)
    state = getattr(said, "sqlstate", None)
    if state is None:  # the driver has no server: there is nobody to give a code
        lost = isinstance(error, OperationalError | InterfaceError)
        return Trouble(*UNREACHABLE, evidence=str(said).strip()) if lost else None
    words = _SERVER.get(state) or _SERVER.get(state[:2])
    return Trouble(*words, evidence=str(said).strip()) if words else None


def _of_sqlite(said: sqlite3.Error) -> Trouble | None:
    words = _SQLITE.get(getattr(said, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & PRIMARY_CODE)
    return Trouble(*words, evidence=str(said)) if words else None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error and what it came from: undoing a transaction that the engine has undone itself fails on top."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
