"""What a device's life is told (events, past tense) and what it asks for (instructions): values of `lifecycle`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from farm.core.device import Service
from farm.core.recovery import Ailment, Rung


class Link(StrEnum):
    """What adb's list says about the way to a device."""

    USABLE = "usable"
    UNAUTHORIZED = "unauthorized"
    OFFLINE = "offline"  # also recovery, bootloader, no permissions: the reason says which


@dataclass(frozen=True)
class Numbered:
    """A piece of work, or the answer to it, by its number."""

    generation: int


@dataclass(frozen=True)
class WorkFailed(Numbered):
    """Work that failed. `ailment`: what that says of the phone; None: nothing (the host failed, or the link)."""

    reason: str
    hint: str = ""
    ailment: Ailment | None = None


# --- events: what happened --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Listed:
    """Adb lists the device with this link; `reason` and `hint` explain an unusable one.

    `mendable`: adb itself may mend it by making the transport anew (not so in a bootloader, or without permissions).
    """

    link: Link
    reason: str = ""
    hint: str = ""
    mendable: bool = False


@dataclass(frozen=True, slots=True)
class Unlisted:
    """Adb lists the device no more."""


@dataclass(frozen=True, slots=True)
class Identified:
    """The device was read; `adopted` is what the record or an adoption rule says about it.

    `same_boot`: it was to be rebooted, and was not.
    """

    generation: int
    adopted: bool
    same_boot: bool = False


class IdentifyFailed(WorkFailed):
    """The read-only commands failed."""


@dataclass(frozen=True, slots=True)
class Adopted:
    """An operator or a rule took the device into the farm."""


@dataclass(frozen=True, slots=True)
class Unadopted:
    """An operator gave the device back; `clean` asks to remove everything of ours from it."""

    clean: bool


@dataclass(frozen=True, slots=True)
class Provisioned:
    """The bundle is whole on the device.

    `adoptable`: the server we started before is alive and still ours. `untidy`: a person had it and nobody tidied it.
    """

    generation: int
    bundle: str
    adoptable: bool = False
    untidy: bool = False


@dataclass(frozen=True, slots=True)
class ProvisionFailed(WorkFailed):
    """The bundle could not be put there. `person`: trying again cannot help (no bundle for this ABI)."""

    person: bool = False


@dataclass(frozen=True, slots=True)
class ServerStarted:
    """The server is bound to a port, or was taken over.

    `in_use`: a session of the daemon before this one is open on it, so that nothing may be done to it.
    """

    generation: int
    in_use: bool = False


@dataclass(frozen=True, slots=True)
class StartFailed(WorkFailed):
    """The server did not bind."""

    ailment: Ailment | None = Ailment.START


@dataclass(frozen=True, slots=True)
class ServerDied:
    """The followed server ended. `stuck`: something that it left survives SIGKILL."""

    follow: int
    reason: str
    stuck: bool = False


@dataclass(frozen=True, slots=True)
class LinkLost:
    """The stream that follows the server ended without a word about it. `mute`: the phone answers no command at all."""

    follow: int
    reason: str = "the connection to the phone was lost"
    mute: bool = False


@dataclass(frozen=True, slots=True)
class CheckPassed:
    """Golden kernels gave the right numbers."""

    generation: int


@dataclass(frozen=True, slots=True)
class CheckFailed(WorkFailed):
    """Golden kernels did not run (`wrong` false), or gave wrong numbers."""

    ailment: Ailment | None = Ailment.CHECK  # meant unless `wrong`
    wrong: bool = False


@dataclass(frozen=True, slots=True)
class SessionBroke:
    """A session ended in a way that leaves the device in doubt (cut, hung, crashed)."""

    reason: str


@dataclass(frozen=True, slots=True)
class LeftByPerson:
    """Somebody had the device in hands and has left it: it must be cleaned and checked."""

    reason: str


@dataclass(frozen=True, slots=True)
class RecoveryFinished:
    """Left-over session processes are gone; `server_alive` says whether the server survived.

    `tidied`: so is what a person has left, and the server with it. What they changed of farm's files is not known.
    """

    generation: int
    server_alive: bool
    tidied: bool = False


class RecoveryFailed(WorkFailed):
    """Left-over session processes could not be removed."""


class BackedOff(Numbered):
    """The waiting time is over."""


class Paused(Numbered):
    """The time for which a link was left alone is over."""


class RungDone(Numbered):
    """A reconnect, reboot or power cycle was carried out; adb's list did not show it."""


class RungFailed(WorkFailed):
    """A reconnect, reboot or power cycle could not be carried out."""


@dataclass(frozen=True, slots=True)
class Ailing:
    """A probe found something that recovery should mend; the ladder decides. Not news while it is being mended.

    `used`: somebody had the phone since its last check, and may have caused it: that it comes again says nothing.
    """

    ailment: Ailment
    reason: str
    hint: str = ""
    used: bool = False


@dataclass(frozen=True, slots=True)
class Well:
    """A probe no longer finds this ailment."""

    ailment: Ailment


@dataclass(frozen=True, slots=True)
class CheckDue:
    """It passed its last check long ago; nothing else speaks against it."""


@dataclass(frozen=True, slots=True)
class Ordered:
    """An operator wants a reboot or a power cycle of an adopted device."""

    rung: Rung
    reason: str


@dataclass(frozen=True, slots=True)
class Distrusted:
    """An operator keeps the device away from users until it is released."""

    reason: str


@dataclass(frozen=True, slots=True)
class BundlesChanged:
    """The library has other bundles than before."""


@dataclass(frozen=True, slots=True)
class BundleWanted:
    """Whoever has the device wants this bundle (a hash) on it; "": nobody does any more, it gets its own back."""

    bundle: str


@dataclass(frozen=True, slots=True)
class Released:
    """An operator says that a quarantined device is fine again."""


@dataclass(frozen=True, slots=True)
class BugFound:
    """Farm itself failed over this device: where it stands is not known, so a person must look."""

    reason: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class ServiceChanged:
    """An operator put the device in service, draining or maintenance."""

    service: Service


Answer = (
    Identified
    | IdentifyFailed
    | Provisioned
    | ProvisionFailed
    | ServerStarted
    | StartFailed
    | CheckPassed
    | CheckFailed
    | RecoveryFinished
    | RecoveryFailed
    | BackedOff
    | Paused
    | RungDone
    | RungFailed
)
Event = (
    Answer
    | Ailing
    | Well
    | CheckDue
    | Ordered
    | Distrusted
    | Listed
    | Unlisted
    | Adopted
    | Unadopted
    | ServerDied
    | LinkLost
    | SessionBroke
    | LeftByPerson
    | BundlesChanged
    | BundleWanted
    | Released
    | BugFound
    | ServiceChanged
)


# --- instructions: what to do -----------------------------------------------------------------------------------------


class Identify(Numbered):
    """Read the device; answer Identified or IdentifyFailed."""


@dataclass(frozen=True, slots=True)
class Provision:
    """Make the bundle whole on the device; answer Provisioned or ProvisionFailed. `deep` compares hashes, not sizes."""

    generation: int
    deep: bool = False


class StartServer(Numbered):
    """Replace whatever server runs by a new one; answer ServerStarted or StartFailed."""


class AdoptServer(Numbered):
    """Keep the running server, kill its orphaned sessions; answer ServerStarted or StartFailed."""


class Check(Numbered):
    """Run the golden kernels; answer CheckPassed or CheckFailed."""


@dataclass(frozen=True, slots=True)
class Reap:
    """Kill the processes that sessions left; answer RecoveryFinished or RecoveryFailed.

    `tidy`: also end the server, whose secret they know, and remove what a person has left.
    """

    generation: int
    tidy: bool = False


@dataclass(frozen=True, slots=True)
class BackOff:
    """Wait before attempt number `attempt` (1 is the first that waits); answer BackedOff."""

    generation: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Pause:
    """Leave a link alone for a while; answer Paused."""

    generation: int
    seconds: float


class Reconnect(Numbered):
    """Have adb make the transport anew; answer RungDone or RungFailed, unless its list changes first."""


class Reboot(Numbered):
    """Reboot it and wait until it went; answer like Reconnect."""


class PowerCycle(Numbered):
    """Cut the power of its port for a moment; answer like Reconnect."""


@dataclass(frozen=True, slots=True)
class FollowServer:
    """Report ServerDied or LinkLost with this number when it happens."""

    follow: int


@dataclass(frozen=True, slots=True)
class StopServer:
    """End the server; nobody waits for an answer."""


@dataclass(frozen=True, slots=True)
class Clean:
    """End the server and remove everything of ours; nobody waits for an answer."""


@dataclass(frozen=True, slots=True)
class DropOldBundles:
    """Remove bundles that are no longer wanted; nobody waits for an answer."""


Work = (
    Identify | Provision | StartServer | AdoptServer | Check | Reap | BackOff | Pause | Reconnect | Reboot | PowerCycle
)
Instruction = Work | FollowServer | StopServer | Clean | DropOldBundles
