"""The way to the daemon: one client, one request."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from farm.cli.output import emit, print_note
from farm.common.errors import HostUnreachableError, NoPhoneError

if TYPE_CHECKING:
    from farm.control.client import ControlClient

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def connect() -> ControlClient:
    """A client of the daemon.

    Raises:
        DaemonUnreachableError: at the first call, when the daemon does not answer.
        UserError: the address or the key of a remote daemon is invalid.
    """
    from farm.control.address import find
    from farm.control.client import ControlClient

    return ControlClient(find())


def call(kind: str, **fields: Any) -> dict[str, Any]:
    """One request, one answer."""
    with connect() as client:
        return client.call(kind, **fields)


def show_devices(names: Iterable[str]) -> list[dict[str, Any]]:
    """Each device's answer of `device.show`, as its host gives it; a note names those whose host is away."""
    shown, away = [], []
    for name in names:
        try:
            shown.append(call("device.show", device=name))
        except HostUnreachableError:
            away.append(name)
    if away:
        print_note(f"left out, as their host cannot be reached: {', '.join(away)}")
    return shown


def phone_of_environment() -> str | None:
    """The name of the phone whose serial or name ANDROID_SERIAL has; None: it is not set.

    A note says when it is the phone of one's own lease: what needs a lease of its own waits for the end of that.

    Raises:
        NoPhoneError: the farm knows no such phone.
    """
    serial = os.environ.get("ANDROID_SERIAL")
    if not serial:
        return None
    for device in call("device.list")["devices"]:
        if serial in (device["serial"], device["name"]):
            if device["name"] == os.environ.get("FARM_DEVICE") and device["holder"]:
                lease = os.environ.get("FARM_LEASE", device["name"])
                print_note(f"{device['name']} is held by your own lease; a job waits for: farm lease release {lease}")
            return str(device["name"])
    raise NoPhoneError(
        f"ANDROID_SERIAL={serial}: the farm has no phone of that serial or name",
        hint="--on chooses phones, and goes first",
    )


def call_and_emit(kind: str, text: str, *, json: bool, **fields: Any) -> None:
    """One request; prints its answer as JSON, or `text`, a format of the answer's fields."""
    answer = call(kind, **fields)
    emit(answer, text.format_map(answer), json=json)
