"""The readings of phones that their host writes for the lists of other hosts of its lab. Pure."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any

from pydantic import AwareDatetime, Field, TypeAdapter, ValidationError

from farm.model.device import DeviceView

Celsius = Annotated[float, Field(allow_inf_nan=False)]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ShownReadings:
    """The readings of one phone in lists; the fields of `DeviceView`."""

    temperature_c: Celsius | None = None
    temperature_of: str = ""  # the sensor's name
    battery_percent: int | None = None
    read_at: AwareDatetime | None = None


_NAMES = [each.name for each in fields(ShownReadings)]
_READINGS = TypeAdapter(dict[str, ShownReadings])


def encode_readings(views: Iterable[DeviceView]) -> dict[str, Any]:
    """The readings of the phones that have been probed, as JSON by name."""
    shown = {view.name: ShownReadings(*(getattr(view, name) for name in _NAMES)) for view in views if view.read_at}
    body: dict[str, Any] = _READINGS.dump_python(shown, mode="json")
    return body


def decode_readings(body: Mapping[str, Any]) -> Mapping[str, ShownReadings]:
    """The readings of a host's phones by name; none if another release wrote them in another form."""
    try:
        return _READINGS.validate_python(body)
    except ValidationError as error:
        log.debug("readings of another host are not shown: %s", error)
        return {}


def with_readings(view: DeviceView, readings: ShownReadings | None) -> DeviceView:
    """The view with these readings."""
    if readings is None:
        return view
    return replace(view, **{name: getattr(readings, name) for name in _NAMES})
