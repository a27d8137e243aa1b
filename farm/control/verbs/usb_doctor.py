"""What `farm doctor` says of USB: whose power can be cut, which phones nobody can locate, what adb may not open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from farm.adb.devices import AdbDevice, DeviceState
from farm.core.device import DeviceView
from farm.core.doctor_findings import OK, OPEN_USB, WARN, Finding, of_error
from farm.core.power_policy import PowerConfig
from farm.fleet.power import PowerError
from farm.fleet.switchboard import Switchboard
from farm.fleet.uhubctl import PortStatus
from farm.fleet.usb import unplaced

CHECK = "usb power"


async def usb_findings(
    config: PowerConfig, board: Switchboard, views: Sequence[DeviceView], listed: Sequence[AdbDevice]
) -> list[Finding]:
    """Look at the hubs and at what adb lists.

    Args:
        config: `[power]`.
        board: the switches of it.
        views: every device.
        listed: adb's list.
    """
    ports: tuple[PortStatus, ...] = ()
    error: PowerError | None = None
    placed = [view for view in views if view.place is not None]
    by_uhubctl = [view for view in placed if view.place and config.rule_for(view.place).switch == "uhubctl"]
    if board.uhubctl.look() or by_uhubctl:
        try:
            ports = await board.uhubctl.ports()
        except PowerError as failed:
            error = failed
    return [
        *_uhubctl(ports, error, by_uhubctl),
        *_places(listed, views),
        *_permissions(listed),
    ]


def _uhubctl(ports: Sequence[PortStatus], error: PowerError | None, views: Sequence[DeviceView]) -> Iterator[Finding]:
    """What it can switch, and whom it cannot."""
    if error is not None:
        if not views:
            yield Finding(CHECK, OK, error.message)
            return
        found = of_error(CHECK, WARN, error)
        yield replace(found, detail=f"{found.detail}; {_names(views)} cannot be power-cycled")
        return
    if not ports:
        return
    smart = Counter(port.hub for port in ports)
    yield Finding(CHECK, OK, f"uhubctl switches {', '.join(f'{hub} ({count} ports)' for hub, count in smart.items())}")
    beyond = [view for view in views if view.place and view.place.hub.removeprefix("usb") not in smart]
    if beyond:
        fix = "move them to a hub that uhubctl lists, or name their switch: [power.hub] in docs/configuration.md"
        yield Finding(CHECK, WARN, f"{_names(beyond)}: their hub cannot switch its ports one by one", fix)
    dark = {(port.hub, port.port) for port in ports if not port.powered}
    for view in views:
        if view.place and (view.place.hub.removeprefix("usb"), view.place.port) in dark:
            where = f"-l {view.place.hub.removeprefix('usb')} -p {view.place.port}"
            yield Finding(CHECK, WARN, f"the port of {view.name} has no power", f"uhubctl {where} -a on")


def _places(listed: Sequence[AdbDevice], views: Sequence[DeviceView]) -> Iterator[Finding]:
    places = {view.serial: view.place for view in views if view.place is not None}
    virtual = {view.serial for view in views if view.identity and view.identity.virtual}
    lost = [serial for serial in unplaced([device.serial for device in listed], places) if serial not in virtual]
    if lost:
        fix = f'say where: [usb.places] "{lost[0]}" = "1-4.2" (ls /sys/bus/usb/devices/*/serial)'
        yield Finding("usb places", WARN, f"nobody knows which port {', '.join(lost)} is in", fix)


def _permissions(listed: Sequence[AdbDevice]) -> Iterator[Finding]:
    closed = [device.serial for device in listed if device.state is DeviceState.NO_PERMISSIONS]
    if closed:
        yield Finding("usb permission", WARN, f"the adb server may not open {', '.join(closed)}", OPEN_USB)


def _names(views: Sequence[DeviceView]) -> str:
    return ", ".join(view.name for view in views)
