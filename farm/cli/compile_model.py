"""`farm compile MODEL --target T | --on SELECTOR`: a package that runs anywhere. A target by name needs no daemon."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from farm.cli import complete, given, work
from farm.cli import model_options as m
from farm.cli.bars import Bars
from farm.cli.context import JsonFlag, call, print_json, say, tell
from farm.cli.local import cache_folder, scratch_folder, with_tvm
from farm.core.errors import NoPhoneError, UserError


def compile_model(
    model: Annotated[Path, typer.Argument(help="A model file.")],
    target: Annotated[
        str | None,
        typer.Option(
            help="host, rpi4, rk3399, android-arm64 ...; a TVM tag; a dict as JSON; with --on a phone's: cpu, adreno."
        ),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            help="For the phones that this selects; the daemon knows them.", autocompletion=complete.selectors
        ),
    ] = None,
    precision: m.PrecisionOption = m.Precision.FLOAT32,
    shape: m.Shapes = None,
    dtype: m.Dtypes = None,
    records: m.Records = None,
    with_model: Annotated[
        bool | None,
        typer.Option("--with-model/--without-model", help="The model file inside; up to 64 MB it is by default."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The package; MODEL.farm.tar here by default.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Compile a model into a package, which `farm run` and `farm bench` take in place of a model.

    Exit code 2 for a bad model, a target that TVM does not take, or one that it would do wrongly.
    """
    work.checked(model)
    if target is None and on is None:
        raise UserError("for what shall it be compiled?", hint="--target NAME, or --on SELECTOR")
    path = output or Path(f"{model.stem}.farm.tar")
    given.writable(path)
    meant: Any = target if on is None else _target_of_phones(on, target or "cpu")
    options = m.model_options(target or "cpu", precision, shape, dtype, records)
    with scratch_folder() as scratch, Bars().ticking(f"compiling {model.name}"):
        made = with_tvm(
            "compile",
            f"compiling {model.name}",
            {
                **options,
                "records": str(records) if records else None,
                "model": str(model),
                "target": meant,
                "target_name": target or "cpu",
                "with_model": with_model,
                "output": str(path.resolve()),
                "cache": str(cache_folder()),
            },
            Path(scratch),
        )
    if json:
        print_json(made)
    else:
        say(f"compiled in {made['seconds']:.1f} s by TVM {made['tvm']} for {made['target']}")
        for note in made["notes"]:
            say(f"tuning records: {note}")
        tell(str(path))


def _target_of_phones(on: str, name: str) -> object:
    """The target that all adopted phones of a selector share.

    Raises:
        NoPhoneError: none matches.
        UserError: they need different code.
    """
    from farm.core.selector import Selector
    from farm.fleet.named_targets import target_on

    selector = Selector.parse(on)
    shown = [call("device.show", device=each["name"]) for each in call("status")["devices"]]
    matching = [each for each in shown if each["adopted"] and selector.matches(each["labels"], tuple(each["aliases"]))]
    if not matching:
        raise NoPhoneError(f"no phone matches {selector}", hint="farm device list")
    targets = {each["name"]: target_on(name, each["targets"], each["name"]) for each in matching}
    first = next(iter(targets))
    other = next((phone for phone, target in targets.items() if target != targets[first]), None)
    if other is not None:
        raise UserError(f"{first} and {other} need different code for {name}", hint="one package each: --on name=...")
    return targets[first]
