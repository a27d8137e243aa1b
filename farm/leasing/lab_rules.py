"""Findings about a lab of several hosts, for `farm doctor` and `farm status`. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from farm.common.doctor_findings import FAIL, OK, WARN, Diagnosis
from farm.common.durations import format_duration, many
from farm.devices.identity.naming_rules import is_distinct, same_phone
from farm.head.host_rules import HostState
from farm.leasing.lab_view import HostView, LabPicture
from farm.model.device import DeviceState, Life
from farm.model.identity import DeviceIdentity
from farm.store.server_rules import CONNECTIONS, HEAD_CONNECTIONS

HEADS = 2  # processes `farm head` in a lab that survives the end of one
LINKS = "lab links"
MEND_LINK = "on both: [lab] listen, the firewall, IPAddressAllow= of farm.service (systemctl edit farm)"
HEAD, HOSTS, RELEASES, CLAIMS, ROOM = "lab head", "lab hosts", "lab releases", "lab phones", "lab connections"
NO_HEAD = "no head decides for the lab: no request is granted, and no job is taken"
START_HEAD = "systemctl start farm-head, or `farm head`"
_AWAY = (HostState.LOST, HostState.SILENT)
# Lives of a phone that its host uses, or keeps from use.
_KEPT = frozenset(
    {Life.PROVISIONING, Life.STARTING, Life.CHECKING, Life.READY, Life.RECOVERING, Life.QUARANTINED}
)  # fmt: skip


def lab_findings(
    lab: LabPicture, own: str, phones: Iterable[DeviceState], max_connections: int | None
) -> Iterator[Diagnosis]:
    """All findings about the lab.

    Args:
        lab: the latest picture.
        own: this host's name.
        phones: of this host.
        max_connections: limit of the database server; None: unknown.
    """
    if lab.old_s:
        yield Diagnosis(HOSTS, WARN, _of_before(lab), "see what is found about the database")
        return
    if lab.has_head:
        yield Diagnosis(HEAD, OK, f"one decides, in term {lab.term}")
    else:
        yield Diagnosis(HEAD, FAIL, NO_HEAD, START_HEAD)
    away = [each for each in lab.hosts if each.state in _AWAY]
    for each in away:
        detail = f"host {each.name} is {each.state}: its latest beat is {format_duration(each.silent_s or 0.0)} old"
        yield Diagnosis(HOSTS, WARN, detail, next_step(each))
    if not away:
        yield Diagnosis(HOSTS, OK, f"{many(len(lab.hosts), 'host')}, none is away")
    deaf = [each.name for each in lab.hosts if each.silent_s is not None and not each.address]
    if len(deaf) > 1:
        detail = f"hosts {', '.join(deaf)} do not listen for others: they do not reach each other's phones and files"
        yield Diagnosis(HOSTS, WARN, detail, "set [lab] listen on all of them, or on all but one")
    yield from (Diagnosis(LINKS, FAIL, each.unreached, MEND_LINK) for each in lab.hosts if each.unreached)
    yield from _releases(lab.hosts, own)
    yield from _claims([(own, phone) for phone in phones] + [(each.host, each.view) for each in lab.phones])
    needed = CONNECTIONS * len(lab.hosts) + HEAD_CONNECTIONS * HEADS
    if max_connections is not None and max_connections < needed:
        detail = f"{many(len(lab.hosts), 'host')} and {HEADS} heads take {needed} connections of {max_connections}"
        yield Diagnosis(ROOM, WARN, detail, "raise max_connections of the database server")


def next_step(host: HostView) -> str:
    """What an operator does about the state of a host; "" if nothing is to be done."""
    if host.unreached:
        return MEND_LINK
    match host.state:
        case HostState.LOST | HostState.SILENT:
            return f"start its daemon, or repair its network; if it does not come back: farm host remove {host.name}"
        case HostState.STOPPED:
            return f"start its daemon; to take it out of the lab: farm host remove {host.name}"
        case HostState.DRAINED:
            return f"to hand its phones out again: farm host drain {host.name} --undo"
        case _:
            return ""


def lab_problems(lab: LabPicture) -> list[str]:
    """What `farm status` and `farm host list` say of the lab."""
    if lab.old_s:
        return [_of_before(lab)]
    head = [] if lab.has_head else [f"{NO_HEAD}: {START_HEAD}"]
    return [*head, *(f"{each.unreached}: {MEND_LINK}" for each in lab.hosts if each.unreached)]


def _of_before(lab: LabPicture) -> str:
    return f"the lab is shown as it was {format_duration(lab.old_s)} ago, when its database last answered this host"


def host_with(lab: LabPicture, own: str, identity: DeviceIdentity, *, starting: bool) -> str:
    """Which other host has this phone, as a reason; "": none. A phone may be on the network, or move with its cable.

    Two hosts that find a phone at the same moment see each other only when they are `starting` its server: the first
    by name continues, unless the other one has made it ready.
    """
    for each in lab.phones:
        view = each.view
        if each.unused or not view.adopted or view.life not in _KEPT or not same_phone(identity, view.identity):
            continue
        if not starting or view.life is Life.READY or each.host < own:
            return f"host {each.host} has the same phone, as {view.name}"
    return ""


def _releases(hosts: Iterable[HostView], own: str) -> Iterator[Diagnosis]:
    running = [each for each in hosts if each.silent_s is not None and each.version]
    mine = next((each for each in running if each.name == own), None)
    if mine is None:
        return
    for each in running:
        if (each.version, each.protocol) != (mine.version, mine.protocol):
            detail = (
                f"host {each.name} has farm {each.version} (protocol {each.protocol}), "
                f"this one {mine.version} ({mine.protocol})"
            )
            yield Diagnosis(RELEASES, WARN, detail, "bring all hosts and heads to one release, one after the other")


def _claims(phones: Iterable[tuple[str, DeviceState]]) -> Iterator[Diagnosis]:
    """Phones that several hosts have at once: over the network, or with a serial number that is not unique."""
    claimed: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for host, phone in phones:
        serial = "" if phone.identity is None else phone.identity.hardware_serial
        if phone.life is not Life.GONE and is_distinct(serial):
            claimed[serial][host] = phone.name
    for serial, by_host in sorted(claimed.items()):
        if len(by_host) > 1:
            where = " and ".join(f"{host} (as {name})" for host, name in sorted(by_host.items()))
            fix = "let one host have it: farm device forget NAME, on the other"
            yield Diagnosis(CLAIMS, WARN, f"phone {serial} is at {where}", fix)
