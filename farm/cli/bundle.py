"""`farm bundle ...`: the runtimes pushed to phones (docs/bundles.md says how to build one)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from farm.cli import complete
from farm.cli.context import JsonFlag, act, call, print_json, print_table, say, tell
from farm.core.errors import ExitCode

app = typer.Typer(help="Runtime bundles: tvm_rpc and its libraries, per ABI.")

Which = Annotated[
    str, typer.Argument(help="A bundle's name or the start of its hash.", autocompletion=complete.bundles)
]


@app.command()
def add(
    folder: Annotated[Path, typer.Argument(help="Folder with tvm_rpc and its libraries.")],
    name: Annotated[str, typer.Option(help="Its name; the folder's by default.")] = "",
    toolchain: Annotated[
        str, typer.Option(help="The toolchain built from the same TVM.", autocompletion=complete.toolchains)
    ] = "default",
    json: JsonFlag = False,
) -> None:
    """Check a folder's ELF closure, compile its golden kernels and keep it."""
    path = folder.absolute()
    fields = {"folder": str(path), "name": name or path.name, "toolchain": toolchain}
    answer = call("bundle.add", on_progress=lambda told: say(told["step"]), **fields)
    if json:
        print_json(answer)
        return
    tell(f"added {_line(answer)}")
    for warning in answer["warnings"]:
        say(f"warning: {warning}")


@app.command("list")
def list_bundles(json: JsonFlag = False) -> None:
    """Every bundle."""
    bundles = call("bundle.list")["bundles"]
    if json:
        print_json(bundles)
        return
    print_table(
        ("NAME", "HASH", "ABI", "TVM", "OPENCL", "FILES", "SIZE", "TOOLCHAIN"),
        (
            (b["name"], b["hash"][:12], b["abi"], b["tvm_version"] or "-", "yes" if b["has_opencl"] else "no",
             len(b["files"]), f"{b['size_bytes'] / 1e6:.1f} MB", b["toolchain"])
            for b in bundles
        ),
    )  # fmt: skip


@app.command()
def show(which: Which, json: JsonFlag = False) -> None:
    """One bundle's files and golden kernels."""
    answer = call("bundle.show", bundle=which)
    if json:
        print_json(answer)
        return
    tell(_line(answer))
    print_table(("FILE", "SIZE", "SHA256"), ((f["name"], f["size_bytes"], f["sha256"]) for f in answer["files"]))


@app.command()
def remove(which: Which, json: JsonFlag = False) -> None:
    """Forget a bundle that no phone uses."""
    act("bundle.remove", "removed {name}", json=json, bundle=which)


@app.command()
def verify(which: Which, json: JsonFlag = False) -> None:
    """Hash every file of a bundle again."""
    answer = call("bundle.verify", bundle=which)
    if json:
        print_json(answer)
    else:
        tell(f"{answer['name']}: " + ("intact" if not answer["differences"] else "damaged"))
        for difference in answer["differences"]:
            tell(f"  {difference}")
    raise typer.Exit(ExitCode.FAILED if answer["differences"] else ExitCode.OK)


def _line(bundle: dict[str, Any]) -> str:
    return f"{bundle['name']} {bundle['hash'][:12]} for {bundle['abi']}, {len(bundle['files'])} files"
