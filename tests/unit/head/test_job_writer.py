"""A job that another process has changed meanwhile: a bug on one host, normal in a lab."""

from __future__ import annotations

import logging
from pathlib import Path
from unittest import mock

import pytest

from farm.common.events import EventLog
from farm.head.job_store import JobWriter
from farm.model.job import JobState
from farm.store.store import Store
from tests.unit.store.values import NOW, job


@pytest.mark.parametrize(("server", "level"), [(None, logging.ERROR), (mock.Mock(), logging.INFO)])
async def test_a_state_that_comes_too_late_is_an_error_where_nobody_else_writes(
    server: mock.Mock | None, level: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    store = Store.open(tmp_path / "farm.db")
    await store.jobs.add((job("j1", state=JobState.CANCELLED, ended_at=NOW),))
    store.server = server
    late = job("j1", state=JobState.HELD)
    await JobWriter(store, EventLog()).save(late, JobState.QUEUED, NOW)
    said = [record for record in caplog.records if "j1" in record.getMessage()]
    assert [record.levelno for record in said] == [level]
    assert store.jobs.get("j1").state is JobState.CANCELLED
    store.close()
