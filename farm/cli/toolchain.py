"""`farm toolchain ...`: host interpreters with a TVM, each paired with the bundle built from the same TVM."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from farm.cli import complete
from farm.cli.context import JsonFlag, act, call, print_json, print_table, say, tell

app = typer.Typer(help="Toolchains: host interpreters with a TVM, and the bundles built from the same.")

Which = Annotated[str, typer.Argument(help="A toolchain's name.", autocompletion=complete.toolchains)]


@app.command()
def add(
    name: Which,
    python: Annotated[Path, typer.Option(help="The interpreter; TVM and farm are installed in its environment.")],
    bundle: Annotated[str, typer.Option(help="The bundle built from the same TVM, which its phones get.")] = "",
    json: JsonFlag = False,
) -> None:
    """Let an interpreter import its TVM, compare it with the bundle's, and use it from now on (operators)."""
    # Not resolved: what makes a virtual environment's python one is where its link lies.
    path = python.absolute()
    answer = call(
        "toolchain.add", on_progress=lambda told: say(told["step"]), name=name, python=str(path), bundle=bundle
    )
    if json:
        print_json(answer)
        return
    paired = f", paired with bundle {answer['bundle']}" if answer["bundle"] else ""
    tell(f"added {answer['name']}: TVM {answer['tvm']} in {answer['python']}{paired}")


@app.command("list")
def list_toolchains(json: JsonFlag = False) -> None:
    """Every toolchain."""
    toolchains = call("toolchain.list")["toolchains"]
    if json:
        print_json(toolchains)
        return
    print_table(
        ("NAME", "TVM", "BUNDLE", "STATE", "FROM", "PYTHON"),
        (
            (t["name"], t["tvm"] or "-", t["bundle"] or "-", "up" if t["up"] else "not up",
             "config" if t["configured"] else "command", t["python"])
            for t in toolchains
        ),
    )  # fmt: skip


@app.command()
def remove(which: Which, json: JsonFlag = False) -> None:
    """Forget a toolchain that was added by command and that nothing needs (operators)."""
    act("toolchain.remove", "removed {name}", json=json, name=which)
