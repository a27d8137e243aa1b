"""The page's own files, read once into memory: nothing is looked up on disk by a name that a request gives."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

TYPES = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "json": "application/json",
    "LICENSE": "text/plain; charset=utf-8",
}
VERSION_CHARS = 12


@dataclass(frozen=True, slots=True)
class Asset:
    """One file as it is served."""

    body: bytes
    media_type: str
    version: str  # start of its SHA-256: part of its address, so that browsers may keep it for ever


def read_assets() -> Mapping[str, Asset]:
    """Every file under farm/web/static by its path there. Blocking; about 200 kB."""
    found: dict[str, Asset] = {}

    def walk(folder: Traversable, path: str) -> None:
        for entry in folder.iterdir():
            if entry.is_dir():
                walk(entry, f"{path}{entry.name}/")
            elif (media_type := TYPES.get(entry.name.rpartition(".")[2])) is not None:
                body = entry.read_bytes()
                found[path + entry.name] = Asset(body, media_type, hashlib.sha256(body).hexdigest()[:VERSION_CHARS])

    walk(files("farm.web") / "static", "")
    return found
