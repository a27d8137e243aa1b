"""Words that fit no command are told as every other error; help cuts no sentence."""

import pytest
import typer

from farm.cli import main as cli


def told(monkeypatch, capsys, *words):
    monkeypatch.setattr("sys.argv", ["farm", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code, capsys.readouterr()


@pytest.mark.parametrize(
    ("words", "said", "hint"),
    [
        (["devise"], "no such command 'devise'. Did you mean 'device'?", "farm [OPTIONS] COMMAND [ARGS]..."),
        (["bench"], "missing argument 'MODEL'", "farm bench [OPTIONS] MODEL"),
        (
            ["explain", "sm8550", "x"],
            "'sm8550' is not one of 'device', 'key', 'job'",
            "farm explain [OPTIONS] WHAT NAME",
        ),
        (
            ["auth", "new", "ann"],
            "missing option '--role'. Choose from: viewer, user, operator",
            "farm auth new [OPTIONS] NAME",
        ),
        (["top", "--nope"], "no such option: --nope", "farm top [OPTIONS]"),
        (["status", "--socket", "x"], "--socket", "it stands before the command: farm --socket ... status"),
        (["bench", "m.onnx", "--wait"], "error: option '--wait' requires an argument", "farm COMMAND"),
        (
            ["bench", "m.onnx", "--on", "x", "--half-width", "nan"],
            "'--half-width': nan is no number",
            "farm bench [OPTIONS] MODEL",
        ),
        (["bench", "m.onnx", "--on", "x", "--half-width", "inf"], "inf is no", "farm bench [OPTIONS] MODEL"),
        (["tune", "m.onnx", "--on", "x", "--trials", "nan"], "'nan' is no whole number", "farm tune [OPTIONS] MODEL"),
        (["records", "remove", "abc"], "'abc' is no whole number", "farm records remove [OPTIONS] SET..."),
        (
            ["store", "prune", "--keep-days", "-1"],
            "'--keep-days': -1 is not in the range 0 to 36500",
            "farm store prune [OPTIONS]",
        ),
        (
            ["bench", "m.onnx", "--on", "x", "--half-width", "0.9"],
            "0.9 is not in the range 0.0005 to 0.5",
            "farm bench [OPTIONS] MODEL",
        ),
        (["demo", "--repeat", "1"], "1 is less than 2", "farm demo [OPTIONS] COMMAND [ARGS]..."),
        (
            ["shell", "--on", "x", "--after", "", "id"],
            "error: option '--after' is empty",
            "farm shell [OPTIONS] LINE...",
        ),
        (
            ["bench", "m.onnx", "--on", "x", "--wait", ""],
            "error: option '--wait' is empty",
            "farm bench [OPTIONS] MODEL",
        ),
        (
            ["bench", "m.onnx", "--on", "x", "--timeout="],
            "error: option '--timeout' is empty",
            "farm bench [OPTIONS] MODEL",
        ),
        (["usage", "--until", ""], "error: option '--until' is empty", "farm usage [OPTIONS]"),
        (["demo", "--phones", ""], "error: option '--phones' is empty", "farm demo [OPTIONS] COMMAND [ARGS]..."),
        (["lease", "acquire", "--on", ""], "error: option '--on' is empty", "farm lease acquire [OPTIONS]"),
        (["compare", "m.onnx", "--on", ""], "error: option '--on' is empty", "farm compare [OPTIONS] A [B]"),
        (["bundle", "add", ""], "error: argument 'FOLDER' is empty", "farm bundle add [OPTIONS] FOLDER"),
        (["watch", "j", ""], "error: argument 'JOBS...' is empty", "farm watch [OPTIONS] JOBS..."),
        (["serve", "--state-dir", ""], "error: option '--state-dir' is empty", "farm serve [OPTIONS]"),
        (["bench", "m.onnx", "--on"], "error: option '--on' requires an argument", "farm COMMAND"),
    ],
)
def test_a_misused_command(monkeypatch, capsys, words, said, hint):
    code, out = told(monkeypatch, capsys, *words)
    error, way_out = out.err.splitlines()
    assert (code, out.out, error.startswith("error: ")) == (2, "", True)
    assert said in error
    assert way_out == f"  hint: {hint} (--help says more)"


@pytest.mark.parametrize(
    ("words", "said", "hint"),
    [
        (["lease", "run", "--on", "x", "--for", "0.1s", "--", "id"], "--for 0.1s", "1s to 7d"),
        (["shell", "--on", "x", "--deadline", "0.01s", "id"], "--deadline 0.01s", "0.1s to 30d"),
        (["shell", "--on", "x", "--deadline", "99d", "id"], "--deadline 99d", "0.1s to 30d"),
        (["shell", "--on", "x", "--timeout", "2d", "id"], "--timeout 2d", "0.1s to 1d"),
        (["bench", "m.onnx", "--on", "x", "--measure", "0.05"], "--measure 0.05", "0.1s to 1h"),
        (["lease", "acquire", "--on", "x", "--for", "8d"], "--for 8d", "1s to 7d"),
        (["sustain", "m.onnx", "--on", "x", "--for", "2"], "--for 2", "5s to 4h"),
        (["top", "--interval", "2h"], "--interval 2h", "0.2s to 1h"),
    ],
)
def test_a_time_out_of_range_is_told_by_its_option(monkeypatch, capsys, words, said, hint):
    code, out = told(monkeypatch, capsys, *words)
    assert (code, out.err.splitlines()) == (2, [f"error: {said} is out of range", f"  hint: {hint}"])


def test_a_duration_that_is_none_is_told_by_its_option(monkeypatch, capsys):
    code, out = told(monkeypatch, capsys, "sustain", "net.onnx", "--on", "a", "--for", "soon")
    assert (code, out.err.splitlines()[0]) == (2, "error: --for: 'soon' is no duration")


def test_a_demo_of_several_hosts_names_what_to_leave_out(monkeypatch, capsys):
    code, out = told(monkeypatch, capsys, "demo", "--hosts", "2", "--physics", "--why", "--repeat", "40")
    said = [
        "error: --physics does not go with --hosts",
        "  hint: leave out --physics, --why, --repeat; or leave out --hosts",
    ]
    assert (code, out.err.splitlines()) == (2, said)


@pytest.mark.parametrize("words", [[], ["device"]])
def test_a_group_alone_is_asked_for_its_help(monkeypatch, capsys, words):
    code, out = told(monkeypatch, capsys, *words)
    assert (code, out.err.startswith("Usage: farm "), "hint:" in out.err) == (2, True, False)


def test_no_description_is_cut(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    tree = typer.main.get_command(cli.app)
    for name in tree.commands:
        if hasattr(tree.get_command(None, name), "commands"):
            code, out = told(monkeypatch, capsys, name, "--help")
            assert (code, [line for line in out.out.splitlines()[1:] if line.endswith("...")]) == (0, [])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bench", __file__, "--on", "x", "--deadline", "5x"], "--deadline: '5x' is no duration and no time"),
        (["bench", __file__, "--on", "x", "--sustain", "5x"], "--sustain: '5x' is no duration"),
        (["shell", "--on", "x", "--wait", "5x", "id"], "--wait: '5x' is no duration"),
        (["top", "--interval", "5x"], "--interval: '5x' is no duration"),
        (["trace", "record", "x", "--out", "f", "--for", "2x"], "--for: '2x' is no duration"),
        (["usage", "--since", "5x"], "--since: '5x' is no time"),
        (["reservation", "add", "--on", "x", "--user", "y", "--for", "2h", "--from", "z"], "--from: 'z' is no time"),
        (
            ["reservation", "add", "--on", "x", "--user", "y", "--for", "2h", "--from", "+z"],
            "--from: 'z' is no duration",
        ),
        (["lease", "extend", "a", "--for", "0"], "--for: '0' is no time at all"),
    ],
)
def test_a_duration_or_time_that_is_none_is_told_by_its_option(monkeypatch, capsys, tmp_path, words, said):
    monkeypatch.setenv("FARM_SOCKET", str(tmp_path / "control.sock"))
    monkeypatch.chdir(tmp_path)
    code, out = told(monkeypatch, capsys, *words)
    assert (code, out.err.splitlines()[0]) == (2, f"error: {said}")
