"""Stands in for `QuiesceController` where phones stay as they are."""

from __future__ import annotations

from types import SimpleNamespace

from farm.devices.quiesce_policy import Level, QuiesceConfig

AS_THEY_ARE = SimpleNamespace(config=QuiesceConfig(level=Level.OFF, tune=Level.OFF))
