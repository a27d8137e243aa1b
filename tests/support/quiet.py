"""Jobs whose phones stay as they are."""

from __future__ import annotations

from typing import Any, cast

from farm.devices.quiesce_policy import Level, QuiesceConfig
from farm.kinds.execution import QuiesceParts

NOBODY = cast(Any, None)
AS_THEY_ARE = QuiesceParts(NOBODY, NOBODY, QuiesceConfig(level=Level.OFF, tune=Level.OFF))
