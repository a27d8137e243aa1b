"""A kind of job is a folder and a line of the registry: one that only tests have is submitted, run and shown."""

import asyncio
from contextlib import nullcontext

import pytest
import typer
from typer.testing import CliRunner

from farm.cli import work
from farm.cli.job import print_page
from farm.client import AsyncClient
from farm.common.errors import UserError
from farm.control.artifacts import ArtifactFolder
from farm.control.server import ControlServer
from farm.control.verbs.job import JobVerbs
from farm.control.verbs.job_views import JobSteps, JobStreams
from farm.jobs.logs import AttemptLogs
from farm.kinds import KINDS, JobKind
from farm.store.event_history import EventHistory
from tests.support.waiting import HANG_S
from tests.support.web_desk import Desk, page, text_of
from tests.unit.jobs.dispatching import running


@pytest.fixture
def kind(monkeypatch):
    kind = JobKind("echo", "Have a text given back", section="Jobs", package="tests.integration.echo_kind")
    monkeypatch.setitem(KINDS.kinds, "echo", kind)
    return kind


@pytest.fixture
async def socket(tmp_path, kind, monkeypatch):
    """The control socket of a daemon's parts with one phone."""
    async with running(tmp_path / "farm.db", "pixel") as farm:
        farm.attempts._executors["echo"] = kind.executor(None)
        history = EventHistory(farm.events, farm.store.events)
        streams = JobStreams(farm.store, history, AttemptLogs(tmp_path / "logs").open, farm.head.is_live)
        verbs = JobVerbs(farm.head, farm.store, streams, JobSteps(farm.events), KINDS)
        path = tmp_path / "control.sock"
        server = ControlServer(path, artifacts=ArtifactFolder(tmp_path / "artifacts"))
        verbs.register(server)
        await server.start()
        monkeypatch.setenv("FARM_SOCKET", str(path))
        yield path
        await server.stop()


async def test_a_kind_of_ones_own_is_submitted_run_and_shown(socket, kind, capsys):
    async with AsyncClient(socket) as client:
        submitted = await client.submit(kind.spec(on="android", text="hello", times=2))
        [outcome] = await client.wait(submitted, timeout_s=HANG_S)
        assert (outcome.ok, outcome.device, outcome.result["said"]) == (True, "pixel", "hello hello")
        print_page(await client.connection.call("job.show", job=outcome.job.id))
    shown = capsys.readouterr().out
    assert f"{outcome.job.id} is done: echo of " in shown
    assert "options   text hello, times 2" in shown
    assert "pixel said hello hello" in shown


async def test_its_page_has_its_plots_and_its_words(socket, kind):
    async with AsyncClient(socket) as client:
        submitted = await client.submit(kind.spec(on="android", text="<b>hello", times=2))
        await client.wait(submitted, timeout_s=HANG_S)
        [job] = submitted.ids
        shown = await client.connection.call("job.show", job=job)
    log = {"lines": [], "start": 0, "next": 0, "number": 0}
    async with page(Desk(**{"job.show": shown, "job.log_tail": log})) as web:
        answer = await web.client.get(f"/jobs/{job}")
    assert answer.status_code == 200
    assert "options text <b>hello, times 2" in text_of(answer.text)
    assert "Said 2 times." in text_of(answer.text)
    assert "pixel said <b>hello <b>hello" in text_of(answer.text)
    assert "<b>" not in answer.text


async def test_its_bounds_are_checked_where_it_enters_the_daemon(socket, kind):
    async with AsyncClient(socket) as client:
        with pytest.raises(UserError, match="echo option 'times' must be 3 or less"):
            await client.connection.call("job.submit", spec={"kind": "echo", "on": "android", "text": "x", "times": 4})


async def test_its_command_has_an_option_for_each_field(socket, kind, monkeypatch):
    monkeypatch.setattr(work, "interruptible", nullcontext)  # signals are the main thread's, which has the daemon here
    app = typer.Typer()
    app.command()(kind.part("command").echo)

    def farm_echo(*arguments):
        return asyncio.to_thread(CliRunner().invoke, app, arguments)

    ran = await farm_echo("--on", "android", "--text", "hello", "--times", "3")
    assert (ran.exit_code, ran.stdout) == (0, "pixel said hello hello hello\n"), repr(ran.exception)
    assert (await farm_echo("--on", "android", "--text", "hello", "--times", "4")).exit_code == 2
    told = (await farm_echo("--help")).stdout
    assert all(option in told for option in ("--text", "--times", "--max-attempts", "--deadline", "--hold"))
