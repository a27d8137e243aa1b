"""The composition root of `farm serve`: one file per group of parts, `daemon.py` in which order they start."""

from farm.daemon.daemon import Daemon

__all__ = ["Daemon"]
