"""Every verb has a role, and whoever is below it is refused before the verb hears of it, and written down."""

import re
from pathlib import Path

import pytest

from farm.common.errors import NotAllowedError
from farm.control.audit import AuditTrail
from farm.control.callers import Caller, LocalPeer, Role
from farm.control.server import ONLY_LOOK
from tests.support.verbs import every_verb, registered
from tests.unit.control.test_audit import Rows

DOCUMENTED = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text()

# What anybody may ask who can reach a door: looking. A verb that changes something does not belong here.
VIEWERS_MAY = {
    "alias.list", "artifact.get", "builder.list", "bundle.list", "bundle.show", "bundle.verify", "device.battery",
    "device.readings", "device.show", "doctor", "events", "events.newest", "explain",
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
    assert all(isinstance(role, Role) for role in verbs.values())
    assert {kind for kind, role in verbs.items() if role is Role.VIEWER} == VIEWERS_MAY
    assert {kind for kind in ONLY_LOOK if verbs[kind] > Role.VIEWER} == ONLY_LOOK


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
    above = sorted(kind for kind, least in desk.verbs.items() if least > role)
    assert len(above) > 20
    for kind in above:
        with pytest.raises(NotAllowedError, match=f"ann is {role.word}"):
            await desk.ask(caller, kind, {"device": "pixel"})
    assert [(row.kind, row.user, row.role, row.origin, row.subject, row.outcome) for row in rows] == [
        (kind, "ann", role.word, origin, "pixel", "not_allowed") for kind in above
    ]


def test_who_may_act():
    assert Caller("ann", Role.USER, "").may_act_for("ann")
    assert Caller("op", Role.OPERATOR, "").may_act_for("ann")
    assert not Caller("bob", Role.USER, "").may_act_for("ann")
    assert not Caller("ann", Role.VIEWER, "").may_act_for("ann")
