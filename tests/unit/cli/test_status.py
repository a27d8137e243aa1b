"""What `farm status` says to somebody who is not on the lab's host."""

import pytest

from farm.cli.status import status_lines, tunnel_hint

ANSWER = {
    "tracker": {"host": "127.0.0.1", "port": 9190}, "web": "http://127.0.0.1:9191/", "keys": [], "devices": [],
    "problems": [],
}  # fmt: skip


@pytest.mark.parametrize(("lab", "host"), [("lab.example", "lab.example"), ("127.0.0.1", "LAB"), ("localhost", "LAB")])
def test_addresses_of_a_lab_elsewhere_come_with_the_way_there(lab, host):
    line = f"  as on the lab's own host; from here: ssh -L 9190:127.0.0.1:9190 -L 9191:127.0.0.1:9191 {host}"
    assert list(status_lines(ANSWER, lab))[2] == line
    assert "9191" not in tunnel_hint({**ANSWER, "web": ""}, lab)


def test_on_its_own_host_they_are_as_they_are():
    assert "ssh" not in "".join(status_lines(ANSWER))
