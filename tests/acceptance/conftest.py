"""What the acceptance tests share."""

import pytest

from tests.support.stock_client import compile_kernel


@pytest.fixture(scope="session")
def kernel(tmp_path_factory):
    """A library with `add_one`, compiled by stock TVM for the machine that virtual phones are."""
    return compile_kernel(tmp_path_factory.mktemp("kernel"))
