"""What the acceptance tests share."""

import pytest

from tests.support.stock_client import Clients, compile_kernel
from tests.support.whole_farm import until_ready


@pytest.fixture(scope="session")
def kernel(tmp_path_factory):
    """A library with `add_one`, compiled by stock TVM for the machine that virtual phones are."""
    return compile_kernel(tmp_path_factory.mktemp("kernel"))


@pytest.fixture
def farm(whole):
    """The module's farm (`whole`), its phones ready again."""
    until_ready(whole)
    return whole


@pytest.fixture
def clients(farm, kernel):
    """Programs of stock TVM for it."""
    return Clients(farm, kernel)
