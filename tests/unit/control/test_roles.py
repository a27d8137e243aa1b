"""Every verb has a role, and whoever is below it is refused before the verb hears of it, and written down."""

import inspect
import re
from contextlib import suppress
from pathlib import Path

import pytest

from farm.common.errors import NotAllowedError
from farm.common.verbs import FieldError, arguments, verbs_of
from farm.control.audit import AuditTrail
from farm.control.callers import Caller, LocalPeer, Role
from tests.support.verbs import every_verb, groups, registered
from tests.unit.control.test_audit import Rows

DOCUMENTED = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text()

# What anybody may ask who can reach a door: looking. A verb that changes something does not belong here.
VIEWERS_MAY = {
    "alias.list", "artifact.get", "builder.list", "bundle.list", "bundle.show", "bundle.verify", "device.battery",
    "device.list", "device.readings", "device.show", "doctor", "events", "events.newest", "explain",
    "fleet.trends", "forward.list", "history.list", "history.models", "host.list",
    "job.list", "job.log_tail", "job.logs", "job.show", "job.steps", "job.watch", "lease.history",
    "lease.list", "ping", "poison.check",
    "poison.list", "records.list", "records.show", "reservation.list", "status", "toolchain.list", "usage",
}  # fmt: skip
ORIGINS = {
    "the job door": ("uid 1000 pid 42", LocalPeer(1000, 1000, 42)),
    "the CURVE door": ("key ann from 10.0.0.3", None),
    "the web page": ("web token ann from 10.0.0.3", None),
}


def test_verbs_of_viewers_change_nothing(tmp_path):
    verbs = every_verb(tmp_path)
    assert all(isinstance(verb.role, Role) for verb in verbs.values())
    assert {kind for kind, verb in verbs.items() if verb.role is Role.VIEWER} == VIEWERS_MAY
    looks = {"audit.list", "auth.list", "job.check", "lease.show", "store.check"}
    assert {kind for kind, verb in verbs.items() if not verb.changes} == looks


def test_a_verb_names_its_fields():
    """A field of an order that is misspelt, or was renamed, would be missing in every row of the audit log."""
    for group in groups():
        for declared, method in verbs_of(group).items():
            parameters = inspect.signature(method).parameters
            named = {each.partition(".")[0] for each in declared.order}
            assert named <= parameters.keys(), declared.kind
            assert callable(declared.subject) or declared.subject in {"", "jobs", *parameters}, declared.kind
            assert declared.role is not Role.VIEWER or not declared.order, declared.kind
            with suppress(FieldError):
                arguments(method, declared.kind, {})


def test_every_verb_is_in_the_document(tmp_path):
    kinds = every_verb(tmp_path)
    assert {"status", "device.adopt", "job.submit", "store.prune"} <= set(kinds)
    assert [kind for kind in sorted(kinds) if not re.search(rf"`{re.escape(kind)}[` \n]", DOCUMENTED)] == []


@pytest.mark.parametrize("door", ORIGINS)
@pytest.mark.parametrize("role", [Role.VIEWER, Role.USER])
async def test_whoever_is_below_a_verbs_role_is_refused_and_written_down(tmp_path, door, role):
    rows = Rows()
    desk = registered(tmp_path, AuditTrail(rows))
    origin, peer = ORIGINS[door]
    caller = Caller("ann", role, origin, peer)
    above = [verb for verb in desk.verbs.values() if verb.role > role]
    assert len(above) > 20
    for verb in above:
        with pytest.raises(NotAllowedError, match=f"ann is {role.word}"):
            await desk.ask(caller, verb.kind, {verb.subject: "pixel"})
    assert [(row.kind, row.user, row.role, row.origin, row.subject, row.outcome) for row in rows] == [
        (verb.kind, "ann", role.word, origin, "pixel" if verb.subject else "", "not_allowed") for verb in above
    ]


def test_who_may_act():
    assert Caller("ann", Role.USER, "").may_act_for("ann")
    assert Caller("op", Role.OPERATOR, "").may_act_for("ann")
    assert not Caller("bob", Role.USER, "").may_act_for("ann")
    assert not Caller("ann", Role.VIEWER, "").may_act_for("ann")
