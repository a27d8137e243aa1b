"""Jobs whose phones stay as they are."""

from __future__ import annotations

from typing import Any, cast

from farm.devices.quiesce_policy import Level, QuiesceConfig
from farm.kinds.execution import QuiesceParts

UNUSED = cast(Any, None)
AS_THEY_ARE = QuiesceParts(UNUSED, UNUSED, QuiesceConfig(level=Level.OFF, tune=Level.OFF))
