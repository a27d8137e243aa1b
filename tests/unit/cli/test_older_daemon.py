"""Answers of another release: a field is missing or further, and commands show what there is.

tests/data/answers has what daemons of November 2026 said of one phone and its jobs; of `events` the items, too.
"""

import json
from copy import deepcopy
from pathlib import Path

import pytest
from typer.testing import CliRunner

from farm.cli import doctor, doctor_host
from farm.cli.main import app
from farm.cli.watch_picture import picture_of
from farm.client.model import job_from
from farm.common.errors import ExitCode, FarmError, MissingFieldError
from farm.config import load
from farm.control.messages import Reply, ShownFields, decode_reply, encode_reply
from tests.support.web_desk import Desk, Page, text_of

ANSWERS = {path.stem: json.loads(path.read_text()) for path in Path("tests/data/answers").glob("*.json")}
ANSWERS["device.list"] = {"devices": ANSWERS["status"]["devices"], "host": ""}
COMMANDS = {  # each with the answers that it shows
    "status": ("status",), "device list": ("device.list",), "device list --long": ("device.list",),
    "top --once": ("status", "job.list", "lease.list"), "job list": ("job.list",), "job show j": ("job.show",),
    "device show d": ("device.show",), "device battery d": ("device.battery",), "lease list": ("lease.list",),
    "host list": ("host.list",), "alias list": ("alias.list",), "bundle list": ("bundle.list",),
    "toolchain list": ("toolchain.list",), "auth list": ("auth.list",), "auth audit": ("audit.list",),
    "poison list": ("poison.list",), "records list": ("records.list",), "reservation list": ("reservation.list",),
    "forward list": ("forward.list",), "builder list": ("builder.list",), "explain key k": ("explain",),
    "usage": ("usage",), "store check": ("store.check",), "history m": ("history.models", "history.list"),
    "history m --plot": ("history.list",),
}  # fmt: skip
# What a command cannot do without: it ends with an error, or as if there were none.
NEEDED = {
    ("top --once", "seq"), ("store check", "ok"), ("history m", "models"), ("history m", "rows"),
    ("history m --plot", "rows"),
}  # fmt: skip


def objects(value, path=()):
    """The path of every object of an answer: of lists, the first element."""
    if isinstance(value, dict):
        yield path
        for name, each in value.items():
            yield from objects(each, (*path, name))
    elif isinstance(value, list) and value:
        yield from objects(value[0], (*path, 0))


def changed(answer):
    """The answer with each field removed in turn, and with a further one in each object."""
    for path in objects(answer):
        for name in (None, *at(answer, path)):
            made = deepcopy(answer)
            if name is None:
                at(made, path)["joined_in_2030"] = {"x": [1]}
            else:
                del at(made, path)[name]
            yield path, name, made


def at(value, path):
    for step in path:
        value = value[step]
    return value


def from_wire(kind, answer):
    return decode_reply(encode_reply(Reply("1", answer)), kind)


@pytest.fixture
def daemon(answers):
    """Commands get these answers, as they come from the wire."""
    answers |= deepcopy(ANSWERS)
    answers["events"] = [*answers["events"]["events"], answers["events"]]
    return answers


@pytest.mark.parametrize("command", sorted(COMMANDS.keys() - {"top --once"}))  # which has a clock
def test_what_it_prints(daemon, farm, snapshot, command):
    for kind in ("status", "device.show", "lease.list"):
        for path in objects(daemon[kind]):
            at(daemon[kind], path).update(dict.fromkeys({"read_at", "expires_at"} & at(daemon[kind], path).keys()))
    snapshot(str(farm(command)))


@pytest.mark.parametrize(("command", "kind"), [(name, kind) for name, kinds in COMMANDS.items() for kind in kinds])
def test_a_missing_or_further_field_costs_no_more_than_its_cell(daemon, command, kind):
    whole = CliRunner().invoke(app, command.split())
    assert whole.exit_code == 0, whole.exc_info
    for path, name, made in changed(ANSWERS[kind]):
        daemon[kind] = made
        done = CliRunner().invoke(app, command.split())
        assert isinstance(done.exception, FarmError | SystemExit | None), (path, name, done.exc_info)
        assert done.exit_code == whole.exit_code or (command, name) in NEEDED, (path, name, done.output)


@pytest.mark.parametrize("kind", ["doctor", "status", "toolchain.list", "bundle.list"])
def test_doctor_has_its_other_findings(daemon, kind, monkeypatch, tmp_path):
    monkeypatch.setattr(doctor_host, "adb_server", lambda *_, **__: ())  # none runs here
    (tmp_path / "farm.toml").touch()
    config = load(tmp_path / "farm.toml", environ={})
    for path, name, made in changed(ANSWERS[kind]):
        daemon[kind] = made
        found = {finding.check for finding in doctor._daemon(config)}
        assert found >= {"exposure", "daemon"}, (path, name)


def test_an_answer_that_makes_no_sense_is_one_error_with_its_place(daemon, farm):
    daemon["status"]["devices"] = 7
    said = farm("status")
    assert (said.code, "status.py:" in said.err, "Traceback" in said.err) == (ExitCode.FAILED, True, False)
    assert said.err.startswith("error: farm failed: TypeError: ")


def test_the_other_cells_of_a_row_stay(daemon):
    for name in ("soc", "temperature_c", "read_at"):
        del daemon["status"]["devices"][0][name]
    lines = CliRunner().invoke(app, ["device", "list"]).output.splitlines()
    assert lines[1].split() == ["pjd110", "ready", "-", "(virtual)", "Adreno", "750", "?C", "85%", "-"]


@pytest.mark.parametrize("kind", ["device.show", "explain"])
async def test_the_page_of_a_phone_of_an_older_host(kind):
    answers = {
        "device.show": ANSWERS["device.show"], "explain": ANSWERS["explain.device"],
        "device.readings": {"columns": {}}, "events.newest": ANSWERS["events"],
    }  # fmt: skip
    farm = Page(Desk(**{each: from_wire(each, answer).fields for each, answer in answers.items()}), lab=True)
    for path, name, made in changed(answers[kind]):
        farm.desk.answers[kind] = from_wire(kind, made).fields
        shown = await farm.get("/devices/pjd110")
        assert shown.status_code == 200, (path, name, text_of(shown.text))


def test_the_record_of_a_job_needs_its_state_and_its_numbers():
    refused = set()
    for name in (row := ANSWERS["job.list"]["jobs"][0]):
        try:
            picture_of(job_from(ShownFields({each: row[each] for each in row if each != name})))
        except MissingFieldError:
            refused.add(name)
    assert refused == {"state", "priority", "submitted_at", "attempts"}


def test_what_a_command_acts_upon_must_be_there():
    shown, acted = (decode_reply(encode_reply(Reply("1", {})), kind).fields for kind in ("status", "lease.extend"))
    with pytest.raises(MissingFieldError, match="no field 'seq'"):
        int(shown["seq"])
    with pytest.raises(MissingFieldError, match="no field 'expires_at'"):
        acted["expires_at"]
