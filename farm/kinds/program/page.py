"""The web page of a program job: that of a bench."""

from farm.kinds.bench.page import PAGE

__all__ = ["PAGE"]
