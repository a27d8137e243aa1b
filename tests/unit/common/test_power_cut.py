"""What farm has stored is whole after a power cut: the bytes and the names are on the disk before anybody is told."""

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from farm.common.files import publish, write_durably
from farm.compiler.files import replaced
from farm.control.artifacts import ArtifactFolder
from farm.store.files import copy_database
from farm.store.store import Store
from tests.support.power_cut import power_cuts

Lost = Callable[[Path], list[Path]]


@pytest.fixture
def lost(monkeypatch):
    with power_cuts(monkeypatch) as lost:
        yield lost


def test_a_file_that_nobody_synced_is_lost(tmp_path, lost):
    (tmp_path / "part").write_bytes(b"torn")
    (tmp_path / "part").replace(tmp_path / "final")
    assert lost(tmp_path) == [tmp_path, tmp_path / "final"]


def test_published_files_and_folders_stay(tmp_path, lost):
    (tmp_path / "part" / "inner").mkdir(parents=True)
    (tmp_path / "part" / "inner" / "library.so").write_bytes(b"elf")
    publish(tmp_path / "part", tmp_path / "cached")
    write_durably(tmp_path / "name", b"hash")
    with replaced(tmp_path / "reference.npz") as partial:
        partial.write_bytes(b"arrays")
    assert (tmp_path / "cached" / "inner" / "library.so").read_bytes() == b"elf"
    assert lost(tmp_path) == []


async def test_uploaded_and_added_artifacts_stay(tmp_path, lost):
    folder, data = ArtifactFolder(tmp_path), b"a model" * 1000
    sha256 = hashlib.sha256(data).hexdigest()
    await folder.put(sha256, 0, data[:100], len(data))
    assert (await folder.put(sha256, 100, data[100:], len(data))).complete
    await asyncio.to_thread(folder.add, b"a result")
    assert lost(tmp_path) == []


def test_a_new_database_and_a_backup_stay(tmp_path, lost):
    (tmp_path / "state").mkdir()
    (tmp_path / "copies").mkdir()
    store = Store.open(tmp_path / "state" / "farm.db")
    try:
        copy_database(tmp_path / "state" / "farm.db", tmp_path / "copies" / "farm.bak")
    finally:
        store.close()
    assert lost(tmp_path / "copies") == []
