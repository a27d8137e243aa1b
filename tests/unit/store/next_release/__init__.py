"""A made-up next release, whose schema has version 17: it shows that databases of this release can be migrated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from farm.store import migrations, opening, schema, server_opening

VERSION = schema.SCHEMA_VERSION + 1


def install(replace: Callable[[object, str, object], None] = setattr) -> None:
    """Turn this process's farm into the next release."""
    for module in (schema, opening, server_opening, migrations):
        replace(module, "SCHEMA_VERSION", VERSION)
    replace(migrations, "VERSION_LOCATIONS", [*migrations.VERSION_LOCATIONS, Path(__file__).parent])
