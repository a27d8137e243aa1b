"""The address at which other hosts dial a host of a lab, and the network that may reach it."""

import socket
from types import SimpleNamespace

import psutil
import pytest

from farm.cli.lab_setup import HostSetup, Listen
from farm.common.errors import HostError, UserError


@pytest.fixture
def interfaces(monkeypatch):
    def has(*addresses):
        rows = [SimpleNamespace(address=each, netmask=mask, family=family(each)) for each, mask in addresses]
        monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"lab0": rows})

    return has


def family(address):
    return socket.AF_INET6 if ":" in address else socket.AF_INET


@pytest.mark.parametrize(
    ("address", "mask", "network"),
    [
        ("10.1.2.3", "255.255.255.0", "10.1.2.0/24"),
        ("10.1.2.3", None, "10.1.2.3/32"),  # point to point
        ("fd00::3", "ffff:ffff:ffff:ffff::", "fd00::/64"),
        ("fd00::3", None, "fd00::3/128"),
    ],
)
def test_the_network_of_an_address(interfaces, address, mask, network):
    interfaces((address, mask), ("127.0.0.1", "255.0.0.0"))
    text = f"[{address}]" if ":" in address else address
    assert Listen.parse(text).network == network


def test_an_address_of_another_host_is_refused(interfaces):
    interfaces(("10.1.2.3", "255.255.255.0"), ("127.0.0.1", "255.0.0.0"))
    for text in ("10.9.9.9", "127.0.0.1"):
        with pytest.raises(UserError, match="other hosts cannot dial") as refused:
            Listen.parse(text)
        assert "10.1.2.3" in refused.value.hint


def test_a_configuration_names_no_lab_unless_the_units_reach_its_database(tmp_path):
    setup = HostSetup.__new__(HostSetup)
    setup.listen, setup._config = Listen("10.1.2.3", 1, "10.1.2.0/24"), tmp_path / "farm.toml"
    with pytest.raises(HostError, match=r"no\.such\.host\.invalid has no address"):
        setup.configure(["[lab]"], "postgresql://farm@no.such.host.invalid/farm")
    assert not setup._config.exists()
