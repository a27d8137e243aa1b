import pytest

from farm.store.store import Store


@pytest.fixture
def store(tmp_path):
    store = Store.open(tmp_path / "farm.db")
    yield store
    store.close()
