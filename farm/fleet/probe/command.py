"""The command of a probe: `device_scripts/probe.sh` itself, without comments and indentation.

It is sent with each probe, not kept on the phone: so it works on a phone that nobody has provisioned yet, is always of
this farm's version, and costs no second program (`sh FILE` would be one more fork and exec). 3 KB over USB are nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache

from farm.fleet.phone_paths import scripts_folder

# Sections in the order in which the phone prints them: those that may block in a driver stand last.
SECTIONS = (
    "boot",
    "memory",
    "cpu",
    "data",
    "battery",
    "thermal",
    "processes",
    "kernel",
    "supply",
    "zones",
    "gpu",
)
END = "end"  # a probe that was not cut ends with it


@cache
def _script() -> str:
    text = (scripts_folder() / "probe.sh").read_text("utf-8")
    lines = (line.strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("#"))


def probe_command(sections: Collection[str] = SECTIONS) -> str:
    """The shell command that prints these sections.

    Raises:
        ValueError: there is no such section.
    """
    if unknown := set(sections) - set(SECTIONS):
        raise ValueError(f"the probe has no section {', '.join(sorted(unknown))}")
    wanted = " ".join(name for name in SECTIONS if name in sections)
    return _script() if len(wanted.split()) == len(SECTIONS) else f"SECTIONS='{wanted}'\n{_script()}"
