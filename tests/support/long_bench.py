"""A bench that continues until it is ended, for tests that look at its worker meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from farm.simulation.virtual_farm import VirtualFarm
from tests.support.tiny_model import tiny_onnx
from tests.support.whole_farm import phones, until

LIMIT_S = 60.0


def workers(farm: VirtualFarm) -> list[psutil.Process]:
    """Living workers of the farm's daemon."""
    assert farm.daemon.process is not None
    daemon = psutil.Process(farm.daemon.process.pid)
    zygotes = [child for child in daemon.children() if "farm.worker.zygote" in child.cmdline()]
    return [worker for zygote in zygotes for worker in zygote.children()]


@contextmanager
def bench_under_way(farm: VirtualFarm) -> Iterator[psutil.Process]:
    """The worker of a bench on the farm's one phone; afterwards it is cancelled and gone, and the next bench works."""
    (phone,) = phones(farm)
    data = tiny_onnx()
    model = farm.client.put_artifact(data)
    spec = {"kind": "bench", "model": model, "name": "small", "on": phone.name, "repeat": 20_000, "number": 1_000_000}
    (job,) = farm.client.call("job.submit", spec=spec)["jobs"]
    for event in farm.client.stream("job.watch", LIMIT_S, jobs=[job["id"]]):
        if event.get("data", {}).get("step") == "timing":
            break
    (worker,) = workers(farm)
    folder = Path(worker.cwd())
    yield worker
    farm.client.call("job.cancel", job=job["id"])
    until(lambda: not workers(farm) and not folder.exists())
    path = farm.folder / "small.onnx"
    path.write_bytes(data)
    done = farm.farm("bench", str(path), "--on", phone.name, "--repeat", "3")
    assert done.returncode == 0, done
