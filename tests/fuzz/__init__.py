"""Fuzz targets for everything farm reads from outside; `python -m tests.fuzz --help`."""
