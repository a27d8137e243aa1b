"""A lab of two hosts under a real systemd, set up by a command each as docs/many-hosts.md says."""

import pytest

from tests.support.debian import booted_debian
from tests.support.whole_farm import answer, refused

pytestmark = pytest.mark.timeout(900)  # the first run makes the root: packages of Debian and of PyPI

ADMINISTRATOR = "/etc/farm/administrator.url"


@pytest.fixture(scope="module")
def hosts(wheel):
    with booted_debian() as first, booted_debian() as second:
        first.dial("10.9.0.1/24", second, "10.9.0.2/24")
        for each in (first, second):
            each.install(wheel, "tvm,lab")
        yield first, second


def listed(debian):
    found = answer(debian.run("farm", "host", "list", "--json"))
    return {row["name"]: (row["state"], row["address"], row["reach"]) for row in found["hosts"]}, found["problems"]


def test_each_host_is_set_up_by_one_command(hosts):
    first, second = hosts
    refused(second.run("farm", "lab", "create", "--listen", "10.9.0.9"), 2, "it has: 10.9.0.2")
    first.output("systemctl", "enable", "--now", "farm-adb", "farm-gate.socket", "farm")
    first.output("farm", "alias", "set", "fast", "soc=sm8550")
    created = first.output("farm", "lab", "create", "--listen", "10.9.0.1", "--name", "lab1")
    assert "wrote /etc/farm/farm.toml" in created
    refused(first.run("farm", "lab", "create", "--listen", "10.9.0.1"), 2, "has a database already")
    assert first.path(ADMINISTRATOR).stat().st_mode & 0o777 == 0o600

    token = first.output("farm", "host", "token", "lab2")
    joined = answer(second.run("farm", "host", "join", "--listen", "10.9.0.2", "--json", stdin=token))
    assert {row["name"]: row["reach"] for row in joined["hosts"]} == {"lab1": "yes", "lab2": ""}
    rows = {"lab1": ("ok", "10.9.0.1:9194"), "lab2": ("ok", "10.9.0.2:9194")}
    for each, own in ((first, "lab1"), (second, "lab2")):
        assert listed(each) == ({name: (*row, "" if name == own else "yes") for name, row in rows.items()}, [])
        assert each.unit("farm-head", "ActiveState", "UnitFileState") == ["active", "enabled"]
        assert "soc=sm8550" in each.output("farm", "alias", "list")


def test_uninstalling_removes_what_the_set_up_wrote_for_units(hosts):
    _, second = hosts
    assert second.path("/etc/systemd/system/farm.service.d/lab.conf").exists()
    second.output("farm", "install-service", "--uninstall")
    assert not second.path("/etc/systemd/system/farm.service.d").exists()
