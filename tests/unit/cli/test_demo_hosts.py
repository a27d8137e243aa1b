"""What the demo of several hosts makes of the lab's events, and of a host without PostgreSQL."""

import pytest

from farm.cli.demo_hosts import Story
from farm.common.errors import HostError
from farm.simulation import postgres


def event(kind, subject, **data):
    return {"kind": kind, "subject": subject, "data": data}


def test_the_story_is_over_when_the_tuning_has_ended_and_the_host_is_missed():
    story = Story("lab2", "a")
    for each in (
        event("lease.granted", "lease-1", job="a", device="one"),
        event("lease.granted", "lease-2", job="b", device="three"),
        event("lease.granted", "lease-3", job="a", device="two"),
        event("host.lost", "lab1", reason="another"),
        event("job.done", "b"),
    ):
        story.take(each)
    assert story.devices == {"one", "two"}
    story.take(event("host.lost", "lab2", reason="not heard of"))
    assert not story.over
    story.take(event("job.done", "a"))
    assert story.over
    assert story.lost == "not heard of"


def test_a_missing_server_is_one_line_with_the_package(monkeypatch):
    monkeypatch.setattr(postgres, "programs", lambda: None)
    with pytest.raises(HostError, match="PostgreSQL server's programs, which are not installed") as raised:
        postgres.check_programs()
    assert raised.value.hint.startswith("apt-get install postgresql")
