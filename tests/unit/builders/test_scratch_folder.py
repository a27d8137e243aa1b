"""The folder that a builder builds in."""

import os
import tempfile

import pytest

from farm.compiler.files import UNUSED_S, locked

pytest.importorskip("distributed")

from farm.builders.worker import LOCK, SCRATCH, scratch_folder


def test_a_killed_builders_folder_goes_after_a_week_a_living_ones_never(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    killed, fresh, living = (tmp_path / f"{SCRATCH}{name}" for name in ("killed", "fresh", "living"))
    for folder in (killed, fresh, living):
        folder.mkdir()
        (folder / LOCK).touch()
    for folder in (killed, living):
        seen_s = folder.stat().st_mtime - UNUSED_S - 1
        os.utime(folder, (seen_s, seen_s))
    with locked(living / LOCK), scratch_folder() as own:
        assert set(tmp_path.iterdir()) == {fresh, living, own}
    assert set(tmp_path.iterdir()) == {fresh, living}
