"""All commands of `farm`, and what holds of each whatever its streams are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import typer

from farm.cli.main import app
from farm.common.errors import ExitCode
from tests.support.forked_commands import CLOSED, FULL, KEPT, LEFT, Ended, ForkedCommands, Streams

# docs/reference-cli.md
DOCUMENTED = {value for name, value in vars(ExitCode).items() if name.isupper()}
STREAMS = (
    Streams(stdout=CLOSED),
    Streams(stdout=FULL),
    Streams(stdout=LEFT),
    Streams(stderr=CLOSED),
    Streams(stderr=FULL),
    Streams(stdout=CLOSED, stderr=CLOSED, stdin=CLOSED),
)
TERMINALS: tuple[tuple[Streams, Mapping[str, str]], ...] = (
    (Streams(columns=40), {"TERM": "xterm-256color"}),
    (Streams(columns=80), {"TERM": "xterm-256color", "NO_COLOR": "1"}),
    (Streams(columns=80), {"TERM": "dumb"}),
    (Streams(columns=200), {"TERM": "xterm-256color"}),
)


def paths() -> Iterator[str]:
    """Commands and groups: "device", "device list"."""
    tree = typer.main.get_command(app)
    for name in tree.commands:  # type: ignore[attr-defined]
        yield name
        yield from (f"{name} {verb}" for verb in getattr(tree.get_command(None, name), "commands", ()))  # type: ignore[attr-defined]


def leaves() -> Iterator[str]:
    """Commands that do something."""
    tree = typer.main.get_command(app)
    for path in paths():
        command = tree.get_command(None, path)  # type: ignore[attr-defined]
        if not getattr(command, "commands", None) or command.invoke_without_command:
            yield path


def judge_all(
    commands: ForkedCommands,
    words: Sequence[str],
    some: Sequence[Streams] = STREAMS,
    terminals: Sequence[tuple[Streams, Mapping[str, str]]] = TERMINALS,
    plain: Ended | None = None,
) -> Ended:
    """Run a command with each of `some` and at each of `terminals`, and assert that it ends as it should.

    That is with its own exit code, unless it has something to print that stdout does not take. `plain` is how it ends
    with streams that take all, if that is known; returned.
    """
    if plain is None:
        plain = commands.run(words, Streams())
        _judge(plain, Streams(), plain, {})
    for streams in some:
        _judge(plain, streams, commands.run(words, streams), {})
    for streams, environ in terminals:
        _judge(plain, streams, commands.run(words, streams, **environ), environ)
    return plain


def _judge(plain: Ended, streams: Streams, ended: Ended, environ: Mapping[str, str]) -> None:
    output = ended.out + ended.err
    assert "Traceback" not in output, output
    assert "Exception ignored" not in output, output
    assert ended.code in DOCUMENTED, ended
    expected = plain.code
    if plain.out and streams.stdout != KEPT:
        expected = ExitCode.OK if streams.stdout == LEFT else ExitCode.FAILED
        if streams.stdout != LEFT and streams.stderr == KEPT:
            assert "error: cannot write to stdout: " in ended.err, ended
    assert ended.code == expected, (plain, ended)
    if streams.columns:
        assert ended.out, "nothing came to the terminal"
        if environ["TERM"] == "dumb":
            assert "\x1b" not in ended.out
        elif "NO_COLOR" in environ:
            assert "\x1b[3" not in ended.out
