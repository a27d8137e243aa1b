"""`farm builder`: CPU machines that build tuning candidates for a farm."""

from __future__ import annotations

import asyncio
import importlib.util
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from farm.cli.connection import JsonFlag, call, call_and_emit
from farm.cli.output import emit, local_time, print_line, print_note, table
from farm.cli.secret_input import TokenFile, read_token
from farm.common.errors import HostError
from farm.common.files import short_hash
from farm.common.install import default_state_dir, pip_install

app = typer.Typer(help="CPU machines that build tuning candidates for the farm.")

Folder = Annotated[
    Path | None, typer.Option("--folder", help="Where its key is; with Slurm a folder that all nodes see.")
]
Slots = Annotated[int | None, typer.Option(min=1, max=1024, help="Candidates at once; without it one for each core.")]
Port = Annotated[int, typer.Option(min=0, max=65_535, help="Where the farm's host reaches this machine; 0: any.")]

_SLURM = """\
#!/bin/bash
#SBATCH --job-name=farm-builder
#SBATCH --array=1-{jobs}
#SBATCH --cpus-per-task={cores}
#SBATCH --time={hours}:00:00
#SBATCH --signal=B:TERM@30
# Once before, on any machine that sees the folder: farm builder join --folder {folder} --no-start
exec {python} -P -m farm builder start --folder {folder}
"""

_KUBERNETES = """\
# Once before, on any machine:
#   farm builder join --folder builder --no-start
#   kubectl create secret generic farm-builder --from-file=builder
apiVersion: apps/v1
kind: Deployment
metadata:
  name: farm-builder
spec:
  replicas: {replicas}
  selector:
    matchLabels: {{app: farm-builder}}
  template:
    metadata:
      labels: {{app: farm-builder}}
    spec:
      containers:
        - name: builder
          image: {image}
          command: [farm, builder, start, --folder, /builder, --slots, "{cores}", --port, "9193"]
          resources:
            requests: {{cpu: "{cores}", memory: {memory_gb}Gi}}
            limits: {{cpu: "{cores}", memory: {memory_gb}Gi}}
          volumeMounts:
            - {{name: membership, mountPath: /builder, readOnly: true}}
      volumes:
        - name: membership
          secret: {{secretName: farm-builder, defaultMode: 0400}}
"""


@app.command()
def token(name: Annotated[str, typer.Argument(help="Name of the new builder.")], json: JsonFlag = False) -> None:
    """Make a token with which one builder may join within 24 hours (for operators)."""
    answer = call("builder.token", name=name)
    emit(answer, answer["token"], json=json)
    if not json:
        print_note("on the builder, with the same release of farm: farm builder join")


@app.command()
def join(
    token_file: TokenFile = None,
    folder: Folder = None,
    start_it: Annotated[bool, typer.Option("--start/--no-start", help="Whether it builds from now on.")] = True,
    slots: Slots = None,
    port: Port = 0,
) -> None:
    """Use a token: this machine is a builder of the farm, and builds until Ctrl-C."""
    _check_installed()
    from farm.builders.membership import BuilderToken
    from farm.builders.membership import join as use

    joined = use(BuilderToken.parse(read_token(token_file)), _folder(folder))
    print_line(f"{joined.name} is a builder of the farm at {joined.scheduler}; its key is in {_folder(folder)}")
    if start_it:
        start(folder, slots, port)


@app.command()
def start(folder: Folder = None, slots: Slots = None, port: Port = 0) -> None:
    """Build for the farm that `join` joined, until Ctrl-C."""
    _check_installed()
    from farm.builders.membership import membership

    membership(_folder(folder))  # before dask is imported, which takes seconds
    from farm.builders.worker import run
    from farm.tuning.build_server import processors

    asyncio.run(run(_folder(folder), slots or processors(), port, print_line))


@app.command("list")
def list_(json: JsonFlag = False) -> None:
    """Every builder: slots, identity, builds done, when it was seen last."""
    answer = call("builder.list")
    rows = (
        (
            row["name"], row["slots"], row["building"], row["built"], short_hash(row["identity"]) or "-",
            row["versions"].get("tvm", "-"), local_time(row["seen_at"]), row["state"],
        )
        for row in answer["builders"]
    )  # fmt: skip
    none = "no builders: farm builder token NAME" if answer["on"] else "this farm takes no builders: [builders] listen"
    titles = ("BUILDER", "SLOTS", "BUILDING", "BUILT", "IDENTITY", "TVM", "SEEN", "STATE")
    emit(answer, table(titles, rows, none=none), json=json)


@app.command()
def remove(
    name: Annotated[str, typer.Argument(help="The builder, or the name in an unused token.")], json: JsonFlag = False
) -> None:
    """Remove a builder: its connections end at once."""
    call_and_emit("builder.remove", "{name} is no builder any more", json=json, name=name)


@app.command()
def slurm(
    jobs: Annotated[int, typer.Option(min=1, help="Builders at once.")] = 1,
    cores: Annotated[int, typer.Option(min=1, help="Of each.")] = 8,
    hours: Annotated[int, typer.Option(min=1, help="How long each runs.")] = 12,
    folder: Folder = None,
) -> None:
    """Print a Slurm script, for sbatch."""
    place, python = shlex.quote(str(_folder(folder))), shlex.quote(sys.executable)
    _print_lines(_SLURM.format(jobs=jobs, cores=cores, hours=hours, folder=place, python=python))


@app.command()
def kubernetes(
    image: Annotated[str, typer.Option(help="With farm[tvm,builders] in it, of the host's release.")],
    replicas: Annotated[int, typer.Option(min=1, help="Builders at once.")] = 1,
    cores: Annotated[int, typer.Option(min=1, help="Of each.")] = 4,
    memory_gb: Annotated[int, typer.Option(min=1, help="Of each: 1 GB a core is plenty.")] = 4,
) -> None:
    """Print a Kubernetes manifest, for kubectl apply."""
    _print_lines(_KUBERNETES.format(image=image, replicas=replicas, cores=cores, memory_gb=memory_gb))


def _print_lines(text: str) -> None:
    for line in text.splitlines():
        print_line(line)


def _folder(given: Path | None) -> Path:
    return (given or default_state_dir() / "builder").expanduser().absolute()


def _check_installed() -> None:
    for package in ("distributed", "cryptography", "tvm"):
        if importlib.util.find_spec(package) is None:
            raise HostError(f"a builder needs {package}", hint=pip_install("tvm,builders", Path(sys.executable).name))
