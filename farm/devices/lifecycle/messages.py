"""Events (past tense) that the life cycle of a device takes, and instructions that it gives."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from shlex import quote

from farm.adb.devices import AdbDevice, AdbState
from farm.devices.lifecycle.recovery import RecoveryAction
from farm.model.device import Service
from farm.model.health import DeviceFault


class LinkState(StrEnum):
    """The state of a device's transport in adb's list."""

    USABLE = "usable"
    UNAUTHORIZED = "unauthorized"
    OFFLINE = "offline"  # also recovery, bootloader, no permissions: the reason says which


@dataclass(frozen=True)
class Numbered:
    """A piece of work, or the answer to it, by its number."""

    generation: int


class WorkEnded(Numbered):
    """How a piece of work ended."""


@dataclass(frozen=True)
class WorkFailed(WorkEnded):
    """Work that failed.

    `fault`: what that says of the phone; None: nothing (the host failed, or the link). BUNDLE: there is no
    sound one for this phone, so that another attempt cannot help.
    """

    reason: str
    hint: str = ""
    fault: DeviceFault | None = None


# --- events: what happened --------------------------------------------------------------------------------------------


class PlainEvent(StrEnum):
    """Events without fields."""

    UNLISTED = "unlisted"  # adb no longer lists the device
    ADOPTED = "adopted"  # an operator or a rule took the device into the farm
    PROVISIONING_DUE = "provisioning due"  # it passed its last check long ago, or gets another bundle
    BUNDLES_CHANGED = "bundles changed"  # the library has other bundles than before
    RELEASED = "released"  # an operator says that a quarantined device is fine again
    PHONE_AT_FAULT = "phone at fault"  # neither the adb server nor the hub broke the session: the phone did


@dataclass(frozen=True, slots=True)
class Listed:
    """Adb lists the device with this link; `reason` and `hint` explain an unusable one.

    `reconnectable`: a new transport may repair it (not so in a bootloader, or without permissions).
    """

    link: LinkState
    reason: str = ""
    hint: str = ""
    reconnectable: bool = False


@dataclass(frozen=True)
class Identified(WorkEnded):
    """The device was read; `adopted`: as its record or an adoption rule says.

    `same_boot`: it was to be rebooted, and was not. `other_link`: why this link is not used; "": it is.
    """

    adopted: bool
    same_boot: bool = False
    other_link: str = ""


@dataclass(frozen=True, slots=True)
class Unadopted:
    """An operator gave the device back; `clean` asks to remove everything of ours from it."""

    clean: bool


@dataclass(frozen=True)
class Provisioned(WorkEnded):
    """The bundle is whole on the device.

    `adoptable`: the server we started before is alive and still ours. `untidy`: a person had it and it was not tidied.
    """

    bundle: str
    adoptable: bool = False
    untidy: bool = False


@dataclass(frozen=True)
class ServerStarted(WorkEnded):
    """The server is bound to a port, or was taken over.

    `in_use`: a session of the daemon before this one is open on it, so that nothing may be done to it.
    """

    in_use: bool = False


@dataclass(frozen=True, slots=True)
class ServerDied:
    """The followed server ended. `stuck`: something that it left survives SIGKILL."""

    follow: int
    reason: str
    stuck: bool = False


@dataclass(frozen=True, slots=True)
class LinkLost:
    """The stream that follows the server ended without its exit status. `mute`: the phone answers no command at all."""

    follow: int
    reason: str = "the connection to the phone was lost"
    mute: bool = False


class CheckPassed(WorkEnded):
    """Golden kernels gave the right numbers."""


@dataclass(frozen=True, slots=True)
class SessionBroke:
    """A session ended in a way that leaves the device in doubt (cut, hung, crashed)."""

    reason: str


@dataclass(frozen=True, slots=True)
class LeftByPerson:
    """A person's lease ended: the device must be cleaned and checked."""

    reason: str


@dataclass(frozen=True)
class RecoveryFinished(WorkEnded):
    """Left-over session processes are gone; `server_alive` says whether the server survived.

    `tidied`: so is what a person has left, and the server with it. What they changed of farm's files is not known.
    """

    server_alive: bool
    tidied: bool = False


class WaitEnded(WorkEnded):
    """The time of `RetryLater` or `Pause` is over."""


class ActionDone(WorkEnded):
    """A reconnect, reboot or power cycle was carried out; adb's list did not show it."""


class ActionFailed(WorkFailed):
    """A reconnect, reboot or power cycle could not be carried out."""


@dataclass(frozen=True, slots=True)
class FaultFound:
    """A probe found something that recovery should repair; `recovery` decides. Ignored while recovery is under way.

    `used`: the phone was leased since its last check, and the holder may have caused it: a repetition proves nothing.
    """

    fault: DeviceFault
    reason: str
    hint: str = ""
    used: bool = False


@dataclass(frozen=True, slots=True)
class FaultCleared:
    """A probe no longer finds this fault."""

    fault: DeviceFault


@dataclass(frozen=True, slots=True)
class ActionOrdered:
    """An operator wants a reboot or a power cycle of an adopted device."""

    action: RecoveryAction
    reason: str


@dataclass(frozen=True, slots=True)
class QuarantineOrdered:
    """An operator keeps the device away from users until it is released."""

    reason: str


@dataclass(frozen=True, slots=True)
class BundleWanted:
    """The lease holder wants this bundle (a hash) on it; "": the override ended, the device gets its own back."""

    bundle: str


@dataclass(frozen=True, slots=True)
class BundleAccepted:
    """The bundle (a hash) that devices had on trial is their own now."""

    bundle: str


@dataclass(frozen=True, slots=True)
class BugFound:
    """Farm itself failed over this device: its real state is unknown, so a person must look."""

    reason: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class ServiceChanged:
    """An operator put the device in service, draining or maintenance."""

    service: Service


DeviceEvent = (
    PlainEvent | Listed | Unadopted | ServerDied | LinkLost | SessionBroke | LeftByPerson | FaultFound | FaultCleared
    | ActionOrdered | QuarantineOrdered | BundleWanted | BundleAccepted | BugFound | ServiceChanged | WorkEnded
)  # fmt: skip


# --- instructions: what to do -----------------------------------------------------------------------------------------


class Identify(Numbered):
    """Read the device; answer Identified or WorkFailed."""


@dataclass(frozen=True)
class Provision(Numbered):
    """Make the bundle whole on the device; answer Provisioned or WorkFailed. `deep` compares hashes, not sizes."""

    deep: bool = False


class StartServer(Numbered):
    """Replace whatever server runs by a new one; answer ServerStarted or WorkFailed."""


class AdoptServer(Numbered):
    """Keep the running server, kill its orphaned sessions; answer ServerStarted or WorkFailed."""


class RunCheck(Numbered):
    """Run the golden kernels; answer CheckPassed or WorkFailed."""


@dataclass(frozen=True)
class Reap(Numbered):
    """Kill the processes that sessions left; answer RecoveryFinished or WorkFailed.

    `tidy`: also end the server, whose secret they know, and remove what a person has left. `doubted`: a session broke,
    so first find out whether adb's server or the hub did that; report PHONE_AT_FAULT if not.
    """

    tidy: bool = False
    doubted: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class RetryLater(Numbered):
    """Wait before attempt number `attempt` (1 is the first that waits); answer WaitEnded."""

    attempt: int


@dataclass(frozen=True)
class Pause(Numbered):
    """Leave a link alone for a while; answer WaitEnded."""

    seconds: float


@dataclass(frozen=True)
class TakeAction(Numbered):
    """Reconnect, reboot or power-cycle it; answer ActionDone or ActionFailed, unless adb's list changes first."""

    action: RecoveryAction


@dataclass(frozen=True, slots=True)
class FollowServer:
    """Report ServerDied or LinkLost with this number when it happens."""

    follow: int


@dataclass(frozen=True, slots=True)
class EndServer:
    """End the server; with `clean` also remove farm's files. No answer is awaited."""

    clean: bool = False


@dataclass(frozen=True, slots=True)
class DropOldBundles:
    """Remove bundles that are no longer wanted; no answer is awaited."""


@dataclass(frozen=True, slots=True)
class ReportBundle:
    """A bundle new to the device failed: its last proven one is provisioned. `at_fault`: the bundle itself is."""

    reason: str
    at_fault: bool


Work = Identify | Provision | StartServer | AdoptServer | RunCheck | Reap | RetryLater | Pause | TakeAction
Instruction = Work | FollowServer | EndServer | DropOldBundles | ReportBundle


_UNAUTHORIZED_HINT = (
    "unlock the phone and accept 'Allow USB debugging' (tick 'Always allow'); no prompt: replug it, or revoke the"
    " authorizations in its developer options"
)
_WORDS: dict[AdbState, tuple[str, str]] = {
    AdbState.OFFLINE: ("its adb transport does not answer", "replug it; if it stays, reboot the phone"),
    AdbState.AUTHORIZING: ("adb keys are being exchanged", ""),
    AdbState.CONNECTING: ("adb is connecting", ""),
    AdbState.NO_PERMISSIONS: (
        "the adb server may not open its USB node",
        "install udev rules for Android (Debian: android-sdk-platform-tools-common), then replug it",
    ),
    AdbState.RECOVERY: ("it is in recovery mode", "reboot it: {adb} reboot"),
    AdbState.SIDELOAD: ("it waits for a sideload", "reboot it"),
    AdbState.RESCUE: ("it is in rescue mode", "reboot it"),
    AdbState.BOOTLOADER: ("it is in its bootloader", "reboot it: fastboot -s {serial} reboot"),
    AdbState.DETACHED: ("it was detached from the adb server", "{adb} attach, or replug it"),
}


def listed(device: AdbDevice, adb: str) -> Listed:
    """The event for one line of adb's list. `adb`: how a person begins a call of adb for it."""
    if device.state is AdbState.DEVICE:
        return Listed(LinkState.USABLE)
    if device.state is AdbState.UNAUTHORIZED:
        reason = "the farm's adb key is not accepted on its screen"
        return Listed(LinkState.UNAUTHORIZED, reason, _UNAUTHORIZED_HINT, reconnectable=True)
    reason, hint = _WORDS.get(device.state, (f"adb lists it as {device.detail or device.state}", "replug it"))
    if device.detail:
        reason = f"{reason} ({device.detail})" if device.state in _WORDS else reason
    # A handshake that went wrong leaves `offline`, or a state that says nothing (`host`): made again it may go right.
    reconnectable = device.state is AdbState.OFFLINE or device.state not in _WORDS
    hint = hint.format(adb=adb, serial=quote(device.serial))
    return Listed(LinkState.OFFLINE, reason, hint, reconnectable=reconnectable)
