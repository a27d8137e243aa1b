"""Genuine captures (tests/data/phones, sources in SOURCES.tsv) put into the form in which a phone would answer."""

import re
from pathlib import Path

from farm.common.phone_text import SECTION, decode
from farm.devices.health.probe.parse import SECTIONS

PHONES = Path(__file__).parents[2] / "data" / "phones"


def capture(name):
    """A capture by `kind/file`, without the .txt."""
    return (PHONES / f"{name}.txt").read_bytes()


def every(kind):
    """All captures of one kind."""
    return sorted((PHONES / kind).glob("*.txt"))


def first_lines(dump):
    """First line per file of a `==> path <==` dump."""
    found = re.findall(r"^==> (\S+) <==\n([^\n]*)", decode(dump), re.MULTILINE)
    return {path: line for path, line in found if line and not line.startswith("==>")}


def answer(getprop, *, cpuinfo="", files=(), extra=b"", gles=b""):
    """What `identity.READ_COMMAND` would print on a phone with these captures; `extra`: more `path=line` lines."""
    lines = {path: line for name in files for path, line in first_lines(capture(name)).items()}
    return b"\n".join(
        [
            f"{SECTION}files".encode(),
            *(f"{path}={line}".encode() for path, line in lines.items()),
            extra,
            f"{SECTION}gles".encode(),
            gles,
            f"{SECTION}cpuinfo".encode(),
            capture(f"cpuinfo/{cpuinfo}") if cpuinfo else b"",
            f"{SECTION}getprop".encode(),
            capture(f"getprop/{getprop}"),
        ]
    )


def probe_answer(*, end=True, **sections):
    """What the probe's command would print on a phone with these captures, in the order of its sections."""
    parts = [
        part for name in SECTIONS if name in sections for part in (f"{SECTION}{name}".encode(), sections[name].rstrip())
    ]
    return b"\n".join([*parts, *([f"{SECTION}end".encode()] if end else []), b""])


def texts(value):
    """Every text inside a record made of dicts and lists."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from texts(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from texts(each)
