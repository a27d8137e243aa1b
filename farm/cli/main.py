"""The `farm` command. Each command is imported when it is asked for: `farm status` does not pay for `farm tune`."""

from __future__ import annotations

import importlib
import math
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from farm import __version__
from farm.cli import complete
from farm.cli.connection import phone_of_environment
from farm.common.durations import BadTimeError
from farm.common.errors import ExitCode, FarmError, HostError, MissingFieldError, UserError
from farm.kinds import KINDS

MisusedError: Any = typer.BadParameter.__base__  # typer's error for a misused command line
# The value's name of options whose own name would say nothing: `--on SELECTOR`.
VALUES = {
    "on": "SELECTOR", "duration": "DURATION", "timeout": "DURATION", "last": "DURATION", "every": "DURATION",
    "deadline": "TIME", "since": "TIME", "until": "TIME", "start": "TIME", "after": "JOB", "devices": "N|all",
    "inputs": "FILE", "output": "FILE", "out": "FILE", "to": "FILE", "plot": "FILE", "records": "FILE",
    "records_b": "FILE", "labels": "FILE", "config": "FILE", "rename": "NAME", "label": "KEY=VALUE",
    "socket": "PATH", "only": "WORDS",
}  # fmt: skip
TEXTS = frozenset({"StringParamType", "TyperPath", "Path"})
MAY_BE_EMPTY = frozenset({"line", "command", "arguments"})  # words of people's own commands
NO_VALUE = "[DURATION]"  # the value's name of options that stand alone, too: `with_wait_values` makes them empty
NO_RANGE = re.compile(r"(-?[\d.]+?)(?:\.0)? is not in the range ([\d.]+)<=x<=([\d.]+)")
NO_NUMBER = re.compile(r"is not a valid (int|float)\w*( range)?")  # typer's words for its types
NUMBERS = frozenset({"IntParamType", "IntRange", "FloatParamType", "FloatRange"})
EXAMPLES: dict[str, tuple[str, ...]] = {
    "bench": (
        "farm bench mobilenet.onnx --on android",
        "farm bench net.onnx --on soc=sm8550 --devices 1 --half-width 0.005",
        "farm bench tuned.farm.tar --on adreno-740 --require trusted --json",
        "farm bench net.tflite --on android --runtime litert --runtime-folder ./litert",
    ),
    "memory": (
        "farm memory mobilenet.onnx --on android",
        "farm memory net.onnx --on soc=sm8550 --target adreno --json",
    ),
    "sustain": (
        "farm sustain net.onnx --on android --for 30m",
        "farm sustain net.onnx --on soc=sm8550 --for 1h --cores big --threads 2 --json",
    ),
    "untethered": (
        "farm untethered mine.toml --on pixel-7 --model net.bin --runs 200 --measure 400",
        "farm untethered mine.toml --on pixel-7 --set threads=2 --json",
    ),
    "energy": (
        "farm energy mobilenet.onnx --on android",
        "farm energy net.onnx --on pixel-7 --measure 600 --json",
    ),
    "sweep": (
        "farm sweep net.onnx --on android --threads 1,2,4,8",
        "farm sweep net.onnx --on soc=sm8550 --cores big,little,0x80 --json",
    ),
    "program make": ("farm program make ort ./ort",),
    "program run": (
        "farm program run timer.toml --on android --set threads=2",
        "farm program run timer.toml --on soc=sm8550 --model net.bin --runs 50",
    ),
    "compare": (
        "farm compare net.onnx tuned.farm.tar --on soc=sm8550",
        "farm compare net.onnx --on android --bundle stable --bundle-b nightly",
        "farm compare sustain-1f0c2ab4 sustain-77aa01cd",
        "farm compare net.onnx --on android --precision-b float16 --quality data.npz",
    ),
    "tune": (
        "farm tune net.onnx --on soc=sm8550 --trials 1000 --devices 4 -o net.farm.tar",
        "farm tune net.onnx --on host --trials 200 --plot curve.svg",
    ),
    "run": (
        "farm run net.onnx --on android --input photo.npz --top-k 5 --labels imagenet.txt",
        "farm run net.onnx --on host -o outputs.npz",
        "farm run net.onnx --on android --quality data.npz --metric top5",
        "farm run net.onnx --on pixel-8-a --locate -o case.farm.tar",
    ),
    "compile": (
        "farm compile net.onnx --target rpi4 -o net.rpi4.farm.tar",
        "farm compile net.onnx --on soc=sm8550 --target adreno",
    ),
    "history": ("farm history net.onnx --plot", "farm history net.onnx --on emerald-9 --json"),
    "export": (
        "farm export --format csv -o results.csv",
        "farm export net.onnx --on emerald-9 --since 30d --format bencher",
        "farm export --format mlflow --to http://mlflow.example:5000",
    ),
    "board": ("farm board -o board.html", "farm board --since 90d -o board.html"),
    "ci bench": ("farm ci bench net.onnx --on pool=ci --baseline main --junit farm.xml",),
    "ci energy": ("farm ci energy net.onnx --on pixel-7 --baseline main",),
    "ci memory": ("farm ci memory net.onnx --on pool=ci",),
    "ci sustain": ("farm ci sustain net.onnx --on pixel-7 --for 10m",),
    "ci init": ("farm ci init github",),
    "ci compare": ("farm ci compare main.farm.tar new.farm.tar --on pool=ci --require-answer",),
    "submit": ("farm submit night.toml", "farm submit night.toml --wait"),
    "shell": (
        "farm shell --on android -- getprop ro.build.fingerprint",
        "farm shell --on soc=sm8550 --devices all -- uptime",
    ),
    "watch": (
        "farm watch bench-0f3a52c7d91e   a picture of one job until it ends",
        "farm watch bench-a71c903e5d28 --json   an event a line, of every job of an array",
    ),
    "logs": ("farm logs -f bench-0f3a52c7d91e", "farm logs bench-0f3a --attempt 1"),
    "explain": ("farm explain device emerald-9", "farm explain job bench-0f3a52c7d91e", "farm explain key adreno-740"),
    "top": (
        "farm top                      until Ctrl-C",
        "farm top --once               the same picture, once",
        "farm top --once --json        for scripts",
    ),
    "status": ("farm status", "farm status --json"),
    "usage": ("farm usage --since 7d --by device",),
    "job list": ("farm job list --state running --state queued", "farm job list --user ann --limit 100 --json"),
    "job cancel": ("farm job cancel bench-0f3a52c7d91e", "farm job cancel --mine --state queued"),
    "job output": ("farm job output run-5b20e1f4a8c6 -o outputs.npz", "farm job output bench-0f3a -o bench.pftrace"),
    "device adopt": ("farm device adopt emerald-9 --pool lab --wait",),
    "device set": ("farm device set emerald-9 --label rack=3 --label owner=ann",),
    "lease acquire": ("farm lease acquire --on gpu=adreno-740 --for 30m",),
    "lease run": ("farm lease run --on android -- python my_tvm_script.py",),
    "reservation add": ("farm reservation add --on soc=sm8550 --user ann --from 14:00 --for 2h",),
    "bundle build": (
        "farm bundle build main",
        "farm bundle build gpu --ndk ~/android-ndk-r28 --tvm-source ~/tvm --opencl",
    ),
    "bundle add": ("farm bundle add ./runtime-arm64 --name nightly",),
    "lab create": ("farm lab create --listen 10.1.2.1",),
    "lab config": ("farm lab config > lab.toml", "farm lab config lab.toml"),
    "lab init": ("farm lab init --url postgresql://farm_admin@db.example/farm",),
    "host token": ("farm host token lab2",),
    "host join": ("farm host join --write",),
    "builder token": ("farm builder token ci-3",),
    "builder join": ("farm builder join token.txt --no-start",),
    "builder slurm": ("farm builder slurm --jobs 20 --cores 8 | sbatch",),
    "alias set": ("farm alias set fast soc=sm8550",),
    "completions": (
        "farm completions bash > ~/.local/share/bash-completion/completions/farm",
        "farm completions zsh > ~/.zfunc/_farm",
        "farm completions fish > ~/.config/fish/completions/farm.fish",
    ),
    "demo": ("farm demo --stay", "farm demo --phones galaxy-s9,huawei-mate-20", "farm demo --hosts 3"),
}


def _kinds(section: str) -> dict[str, tuple[str, str]]:
    """The commands of kinds of jobs under a heading."""
    return {each.name: (each.command, each.about) for each in KINDS.kinds.values() if each.section == section}


# Heading in `farm --help` -> command -> where its function or group is, and what it is for: below 60 characters, so
# that a terminal of 80 columns shows it.
SECTIONS = {
    "Models": {
        **_kinds("Models"),
        "compile": ("farm.cli.model:compile_model", "Compile a model into a package"),
        "history": ("farm.cli.history:history", "A model's results over time, with regressions"),
        "export": ("farm.cli.export:export", "Stored results as JSON, CSV, Parquet, metrics, MLflow runs"),
        "board": ("farm.cli.export:board", "One HTML page of models, phones and verdicts"),
        "ci": ("farm.cli.ci:app", "Checks for CI: slower than another branch or build?"),
        "records": ("farm.cli.records:app", "Tuning records: list, merge, export"),
        "model": ("farm.cli.model:app", "Model files: what is in one; import and make some"),
    },
    "Jobs": {
        "submit": ("farm.cli.job:submit", "Queue the jobs of a file: models x phones x targets"),
        **_kinds("Jobs"),
        "job": ("farm.cli.job:app", "List jobs, show, cancel, hold and resume them"),
        "watch": ("farm.cli.watch:watch", "Follow jobs until all have ended"),
        "logs": ("farm.cli.job:logs", "The log of a job's attempt"),
        "explain": ("farm.cli.status:explain", "Explain why a phone, a key or a job waits"),
    },
    "Phones": {
        "status": ("farm.cli.status:status", "The tracker's keys and every phone, once"),
        "top": ("farm.cli.top:top", "Phones, jobs and events as they change"),
        "device": ("farm.cli.device:app", "List, adopt, change and remove phones"),
        **_kinds("Phones"),
        "reservation": ("farm.cli.access:reservation", "Phones that are kept for one user for a time"),
        "usage": ("farm.cli.access:usage", "Use of phones by user, device or source"),
        "alias": ("farm.cli.access:alias", "Keys that stock TVM clients ask for"),
        "forward": ("farm.cli.access:forward", "adb forward and reverse entries that stay"),
        "trace": ("farm.cli.trace:app", "Record a phone's health over time, and show it"),
    },
    "The farm": {
        "auth": ("farm.cli.auth:app", "Accounts for remote users; the audit log"),
        "serve": ("farm.cli.daemon:serve", "Run the daemon in the foreground"),
        "head": ("farm.cli.head:head", "Decide for several hosts which request gets which phone"),
        "gate": ("farm.cli.daemon:gate", "Hold the TVM port and its sessions, apart from the daemon"),
        "reload": ("farm.cli.daemon:reload", "Have the daemon read its configuration again"),
        "drain": ("farm.cli.daemon:drain", "Start no new lease on any phone, for an upgrade"),
        "doctor": ("farm.cli.doctor:doctor", "Check this host; each finding comes with its fix"),
        "bundle": ("farm.cli.runtimes:bundle", "TVM runtimes that are pushed to phones"),
        "builder": ("farm.cli.builder:app", "CPU machines that build tuning candidates"),
        "toolchain": ("farm.cli.runtimes:toolchain", "Host interpreters with a TVM, and their bundles"),
        "lab": ("farm.cli.lab:app", "Begin a lab over a PostgreSQL server"),
        "host": ("farm.cli.host:app", "The hosts of a lab: join, list, drain, remove"),
        "store": ("farm.cli.store:app", "The database: check, copy, prune it"),
        "poison": ("farm.cli.runtimes:poison", "Libraries that killed the process that ran them"),
        "demo": ("farm.cli.demo:app", "Run the farm on virtual phones: nothing to plug in"),
        "install-service": ("farm.cli.install_service:install_service", "Run farm as a service of systemd"),
        "uninstall": ("farm.cli.daemon:uninstall", "Remove farm from every phone"),
    },
    "This command line": {
        "completions": ("farm.cli.complete:completions", "Completion of commands and names in your shell"),
    },
}  # fmt: skip


class LazyGroup(TyperGroup):
    """A group with commands that are imported when they are asked for.

    The commands of SECTIONS, the root's: help shows them by section, completion offers them; neither imports them.
    """

    path = ""  # what people write before its commands; "": the root

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for parameter in self.params:
            _prepare(parameter)
        self._abouts = {name: about for some in SECTIONS.values() for name, (_, about) in some.items()}
        self._homes = {name: home for some in SECTIONS.values() for name, (home, _) in some.items()}
        self.commands: Any = self.commands or dict.fromkeys(self._homes)  # None: not imported yet

    def add_lazy(self, path: str, homes: Mapping[str, str]) -> None:
        """Offer commands before its own; `homes`: where each is, module:name."""
        self.path, self._homes = path, dict(homes)
        self.commands = {**dict.fromkeys(homes), **self.commands}

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 (the base has it)
        """Import a command."""
        if cmd_name in self.commands and self.commands[cmd_name] is None:
            self.commands[cmd_name] = _load(f"{self.path} {cmd_name}".strip(), self._homes[cmd_name])
        return self.commands.get(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """One list per section."""
        if self.path:
            super().format_commands(ctx, formatter)
            return
        width = max(map(len, self.commands))
        for heading, some in SECTIONS.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), about) for name, (_, about) in some.items()])

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Names of commands; behind a dash, options."""
        if self.path or incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        from typer._click.shell_completion import CompletionItem

        offered = {name: about for name, about in self._abouts.items() if name.startswith(incomplete)}
        return [CompletionItem(name, help=about) for name, about in offered.items()]


def _format_options(command: Any, context: Any, formatter: Any) -> None:
    """Arguments, the command's own options, then those under the headings that their declarations name."""
    from farm.model.specs import GROUPS

    sections: dict[str, list[tuple[str, str]]] = {name: [] for name in ("Arguments", "Options", *GROUPS)}
    for parameter in command.get_params(context):
        own = "Arguments" if parameter.param_type_name == "argument" else "Options"
        if record := parameter.get_help_record(context):
            sections.setdefault(getattr(parameter, "rich_help_panel", None) or own, []).append(record)
    for heading, records in sections.items():
        if records:
            with formatter.section(heading):
                formatter.write_dl(records)


app = typer.Typer(
    name="farm", cls=LazyGroup, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    rich_markup_mode=None, help="Android phones on this host as a measurement lab for ML compilers.",
)  # fmt: skip


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"farm {__version__}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    socket: Annotated[
        Path | None, typer.Option(help="The daemon's control socket.", envvar="FARM_SOCKET", show_default=False)
    ] = None,
    daemon: Annotated[
        str,
        typer.Option(help="The address of a remote daemon, tcp://HOST:PORT.", envvar="FARM_DAEMON", show_default=False),
    ] = "",
    key: Annotated[
        str, typer.Option(help="The key file for it (farm auth new).", envvar="FARM_KEY", show_default=False)
    ] = "",
    version: Annotated[  # noqa: ARG001 (its callback acts)
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Options of every command."""
    if socket is not None:
        os.environ["FARM_SOCKET"] = str(socket)
    given = {name for name in ("socket", "daemon", "key") if _on_the_line(context, name)}
    if given == {"socket"}:  # the command line goes before the environment
        daemon = key = ""
    for name, value in (("FARM_DAEMON", daemon), ("FARM_KEY", key)):
        if value:
            os.environ[name] = value
        else:
            os.environ.pop(name, None)


def _on_the_line(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def main() -> None:
    """Entry point: every end of a command has its exit code (docs/reference-cli.md), and none is a traceback."""
    from farm.cli.output import OutputError, guard_streams, print_error

    guard_streams()
    try:
        try:
            code = _run()
        except SystemExit as end:
            code = end.code
        sys.stdout.flush()
    except OutputError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is still in the buffer
        # `farm status | head`: the reader has what it wanted
        code = ExitCode.OK if isinstance(error.__cause__, BrokenPipeError) else print_error(error)
    sys.exit(code)


def _run() -> Any:
    """Run the command; returns its exit code."""
    from farm.cli.output import OutputError, print_error

    try:
        if complete.VARIABLE in os.environ:
            complete.prepare()
        return app(with_wait_values(sys.argv[1:]), prog_name="farm", standalone_mode=False)
    except OutputError:
        raise
    except MissingFieldError as error:
        return print_error(_of_older_daemon(error))
    except FarmError as error:
        return print_error(error, whole="--json" in sys.argv)
    except MisusedError as error:
        return _misused(error)
    except ModuleNotFoundError as error:
        from farm.common.install import extra_of, pip_install

        name = str(error.name)
        missing = f"this needs the Python package {name.partition('.')[0]}, which is not installed"
        return print_error(HostError(missing, hint=pip_install(extra_of(name), sys.executable)))
    except Exception as error:  # noqa: BLE001 - what is no FarmError is a bug, or an answer that makes no sense
        return print_error(_unforeseen(error))


def _unforeseen(error: Exception) -> FarmError:
    """What the host refuses about a file, in words; any other error with its places in farm."""
    from traceback import extract_tb

    from farm.common.os_errors import HINTS, hint_for

    if isinstance(error, OSError) and error.filename and error.errno in HINTS:
        if isinstance(error, PermissionError):
            closed = "it or a folder above it is closed to you: name another, or ask its owner"
            return UserError(f"cannot use {error.filename}: {error.strerror}", hint=closed)
        return HostError(f"cannot use {error.filename}: {error.strerror}", hint=hint_for(error.errno))

    trace = extract_tb(error.__traceback__)
    places = [f"{Path(each.filename).name}:{each.lineno}" for each in trace if f"{os.sep}farm{os.sep}" in each.filename]
    hint = "compare farm --version with the daemon's (farm status); if they are the same, report this as a bug of farm"
    return FarmError(f"farm failed: {type(error).__name__}: {error}", hint=hint, evidence=" > ".join(places))


def _of_older_daemon(error: MissingFieldError) -> FarmError:
    """The error with both versions, if the daemon still answers."""
    from farm.cli.connection import call

    try:
        daemon = call("status")["version"]
    except FarmError:
        return error
    return FarmError(f"{error.message}: the daemon is farm {daemon}, this command is {__version__}", hint=error.hint)


def with_wait_values(arguments: Sequence[str]) -> list[str]:
    """The command line with `--wait=` for a `--wait` without a duration: click's options have a value, or never.

    Only of `submit` and `device adopt`, which do not wait by default: other commands may end in a user's own command.
    """
    ends = arguments.index("--") if "--" in arguments else len(arguments)
    if not {"submit", "adopt"} & set(arguments[:ends]):
        return list(arguments)
    return [
        f"{each}=" if each == "--wait" and at < ends and not _begins_with_digit(arguments[at + 1 : ends]) else each
        for at, each in enumerate(arguments)
    ]


def _begins_with_digit(rest: Sequence[str]) -> bool:
    return bool(rest) and rest[0][:2].strip("-+.")[:1].isdigit()


def _misused(error: Any) -> int:
    """Print a misused command line as every other error; a group alone prints its help."""
    from farm.cli.output import print_error

    message, usage = error.format_message(), "farm COMMAND"
    if error.ctx is not None:
        if message == error.ctx.get_help():
            error.show()
            return ExitCode.USAGE
        usage = error.ctx.get_usage().removeprefix("Usage: ")
        option = getattr(error, "option_name", "")
        if error.ctx.parent and any(option in each.opts for each in error.ctx.find_root().command.params):
            usage = f"it stands before the command: farm {option} ... {error.ctx.info_name}"
    message = " ".join(message.split())  # choices stand on lines of their own there
    message = NO_RANGE.sub(r"\1 is not in the range \2 to \3", message)
    message = message.replace("is not in the range x>=", "is less than ")
    message = NO_NUMBER.sub(lambda found: "is no whole number" if found[1] == "int" else "is no number", message)
    parameter = getattr(error, "param", None)  # that is missing, or has a wrong value; `--on` takes any
    if parameter is not None and parameter.name == "on":
        message = message.rstrip(".") + ", and ANDROID_SERIAL is not set"
    return print_error(UserError(message[:1].lower() + message[1:].rstrip("."), hint=f"{usage} (--help says more)"))


@cache  # completion asks for a command more than once, tests hundreds of times
def _load(path: str, home: str) -> Any:
    """The command that people write as `path`; `home`: of its function, or of the group that it is or is in."""
    from farm.cli.main import EXAMPLES, LazyGroup

    module, _, attribute = home.partition(":")
    source = importlib.import_module(module)
    found = getattr(source, attribute)
    group, _, name = path.rpartition(" ")
    parent = typer.Typer(add_completion=False, rich_markup_mode=None)
    parent.callback()(lambda: None)  # a command that is alone would take its parent's place
    if not isinstance(found, typer.Typer):
        parent.command(name)(found)
    elif group:
        parent.add_typer(found)  # its commands become the parent's
    else:
        parent.add_typer(found, name=name, cls=LazyGroup, no_args_is_help=found.registered_callback is None)
    command: Any = getattr(get_command(parent), "commands")[name]  # noqa: B009 (typer's name for its type varies)
    below = getattr(command, "commands", {})
    for written, each in ((path, command), *((f"{path} {verb}", it) for verb, it in below.items())):
        each.short_help = " ".join((each.help or "").partition("\n\n")[0].split())  # whole: typer cuts it at 80 columns
        for parameter in each.params:
            _prepare(parameter)
            if parameter.name == "on" and parameter.required:
                parameter.default = phone_of_environment
                parameter.help += " Left out: the phone of ANDROID_SERIAL."
        if not hasattr(each, "commands"):
            each.format_options = partial(_format_options, each)
            each.invoke = partial(_invoked, each.invoke)
        if written in EXAMPLES:
            each.epilog = "Examples:\n\n\b\n" + "\n".join(f"  {line}" for line in EXAMPLES[written])
    if below:
        command.add_lazy(path, getattr(source, "LAZY", {}))
    return command


def _invoked(invoke: Callable[[Any], Any], context: Any) -> Any:
    """Run a command. An error of a duration or a time names its option."""
    try:
        return invoke(context)
    except BadTimeError as error:
        for each in context.command.params:
            value = context.params.get(each.name)
            if each.param_type_name == "option" and isinstance(value, str) and error.is_of(value):
                raise BadTimeError(f"{each.opts[0]}: {error.message}", hint=error.hint) from error
        raise


def _prepare(parameter: Any) -> None:
    """Name the value of a command's parameter, and check it."""
    _name_plainly(parameter)
    parameter.process_value = partial(_checked, parameter, parameter.process_value)


def _checked(parameter: Any, process: Callable[[Any, Any], Any], context: Any, value: Any) -> Any:
    """A parameter's value. An empty one, which would switch a check off or name this folder, and NaN are refused."""
    is_argument = parameter.param_type_name == "argument"
    given = value if isinstance(value, tuple | list) else (value,)
    refused = parameter.name not in MAY_BE_EMPTY if is_argument else parameter.metavar != NO_VALUE
    if refused and "" in given and _on_the_line(context, parameter.name):
        what = f"argument '{parameter.metavar}'" if is_argument else f"option '{parameter.opts[0]}'"
        raise MisusedError(f"{what} is empty", context)
    converted = process(context, value)
    if isinstance(converted, float) and not math.isfinite(converted):
        raise typer.BadParameter(f"{value} is no number", context, parameter)
    return converted


def _name_plainly(parameter: Any) -> None:
    """`--on SELECTOR` and `MODEL` in the usual form: typer would print `--on <str>` and `{model}`."""
    plain = (parameter.name or "").upper()
    if parameter.param_type_name == "argument" and plain:
        named = plain + ("..." if parameter.nargs == -1 else "")
        parameter.metavar = parameter.metavar or (named if parameter.required else f"[{named}]")
        parameter.make_metavar = lambda *_, **__: parameter.metavar
    elif parameter.metavar is not None or not plain:
        return
    elif type(parameter.type).__name__ in TEXTS and not parameter.is_flag:
        parameter.metavar = VALUES.get(parameter.name, plain)
    elif type(parameter.type).__name__ in NUMBERS and not parameter.count:
        parameter.metavar = "N"
