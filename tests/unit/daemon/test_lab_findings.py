"""What `farm doctor` says of a lab while its database is away."""

import asyncio
from types import SimpleNamespace

from farm.daemon.interfaces import _check_lab
from farm.leasing.lab_view import LabPicture, LabView


class View(LabView):
    """The latest picture: the database is away, and all was well before."""

    def __init__(self):
        super().__init__()
        self.own = "lab1"

    async def look(self):
        return self.latest


def test_a_picture_of_before_is_no_finding():
    """A removed host is cut off, and its latest picture knows nothing of it."""
    store = SimpleNamespace(problem="", server=SimpleNamespace(facts=SimpleNamespace(max_connections=100)))
    fleet = SimpleNamespace(views=lambda: ())
    parts = SimpleNamespace(persistence=SimpleNamespace(lab=View(), store=store), phones=SimpleNamespace(fleet=fleet))
    check, lab = _check_lab(parts), parts.persistence.lab
    assert [each.check for each in asyncio.run(check())] == ["lab head", "lab hosts"]
    store.problem = "the database cannot be written: this host was removed from the lab"
    assert asyncio.run(check()) == []
    lab.latest = LabPicture(old_s=60.0)
    (finding,) = asyncio.run(check())
    assert finding.detail == "the lab is shown as it was 1m ago, when its database last answered this host"
