"""Jobs whose phones stay as they are."""

from __future__ import annotations

from typing import Any, cast

from farm.core.quiesce import Level, QuiesceConfig
from farm.jobs.quieting import QuietParts

NOBODY = cast(Any, None)
AS_THEY_ARE = QuietParts(NOBODY, NOBODY, QuiesceConfig(level=Level.OFF, tune=Level.OFF))
