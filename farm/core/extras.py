"""How farm and its extras are installed, as hints say it: from its checkout or its wheel (docs/service.md)."""

from __future__ import annotations

SOURCE = "/path/to/farm"  # never the bare name: on PyPI `farm` is somebody else's package


def pip_install(extra: str = "", python: str = "") -> str:
    """The command that installs farm, with an extra, for an interpreter."""
    return f"{python and f'{python} -m '}pip install '{SOURCE}{extra and f'[{extra}]'}'"
