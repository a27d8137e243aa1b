"""The wheel: built, installed, compared with the checkout; a farm run from it opens nothing of the checkout."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from farm.simulation.virtual_farm import phones_of, virtual_farm
from farm.zoo import small_cnn
from tests.support.tvm import ROOT

PLACES = {  # in the checkout -> in the wheel
    "farm": "farm",
    "device_scripts": "farm/device_scripts",
    "systemd": "farm/systemd",
    "prometheus": "farm/prometheus",
    "grafana": "farm/grafana",
    "man": "share/man/man1",
}
PAGES = ("", "leases", "queue", "jobs", "bundles", "history", "records", "sign-in", "metrics")
# Everything that reads files of its own: a daemon and its page, a virtual phone, a worker, commands that print files.
USE = f"""
import os, pathlib, re, sys, urllib.request
import farm
from farm.simulation.virtual_farm import phones_of, virtual_farm
from farm.zoo import small_cnn as build

def get(address):
    with urllib.request.urlopen(address, timeout=30) as answer:
        return answer.read().decode()

with virtual_farm(phones_of(["oneplus-12"])) as lab:
    lab.wait_ready(1)
    status = lab.status()
    web = status["web"].rstrip("/")
    for page in {PAGES}:
        get(f"{{web}}/{{page}}")
    shown = get(f"{{web}}/devices/{{status['devices'][0]['name']}}")
    for file in re.findall(r'(?:src|href)="(/static/[^"]+)"', shown):
        get(web + file)
    model = lab.folder / "small.onnx"
    model.write_bytes(build().SerializeToString())
    for command in (["bench", str(model), "--on", "android", "--repeat", "3"], ["shell", "--on", "android", "--", "id"],
                    ["lease", "run", "--on", "android", "--", "true"], ["completions", "bash"],
                    ["install-service", "--print"], ["doctor"]):
        done = lab.farm(*command)
        assert done.returncode in (0, 1 if command == ["doctor"] else 0), done
        assert "Traceback" not in done.stderr, done
pathlib.Path(os.environ["CHECKOUT"], "README.md").read_text()  # is noticed
print(pathlib.Path(farm.__file__).parents[1])
"""


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """Where the wheel is installed."""
    place = tmp_path_factory.mktemp("environment") / "site-packages"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(place)]
    subprocess.run([*install, str(wheel)], check=True, capture_output=True, timeout=60)
    return place


def test_every_file_is_in_the_wheel(installed):
    tracked = subprocess.run(["git", "ls-files", *PLACES], cwd=ROOT, check=True, capture_output=True, text=True)
    missing = []
    for name in tracked.stdout.splitlines():
        top, _, rest = name.partition("/")
        file = installed / PLACES[top] / rest
        if (ROOT / name).is_file() and (not file.is_file() or file.read_bytes() != (ROOT / name).read_bytes()):
            missing.append(name)
    assert missing == []
    (metadata,) = installed.glob("tvm_phone_farm-*.dist-info")
    licences = {
        path.relative_to(metadata / "licenses").name for path in (metadata / "licenses").rglob("*") if path.is_file()
    }
    assert licences == {"LICENSE", "htmx.LICENSE", "uPlot.LICENSE"}
    assert "farm = farm.__main__:main" in (metadata / "entry_points.txt").read_text()


def test_a_farm_from_the_wheel_needs_nothing_of_the_checkout(installed, tmp_path):
    opened = tmp_path / "opened"
    mine = {name: value for name, value in os.environ.items() if not name.startswith("FARM_")} | {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "tests/support/opened"), str(installed)]),
        "CHECKOUT": str(ROOT), "OPENED": str(opened), "XDG_CACHE_HOME": str(tmp_path), "PYTHONWARNINGS": "ignore",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", USE], cwd=tmp_path, env=mine, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()) == installed
    assert opened.read_text().splitlines() == [str(ROOT / "README.md")]


HELP = """
import contextlib, io
from farm.cli.main import app
from typer.main import get_command

def paths(tree, above=()):
    for name in tree.commands:
        command = tree.get_command(None, name)
        yield (*above, name)
        if hasattr(command, "commands"):
            yield from paths(command, (*above, name))

for path in paths(get_command(app)):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        app([*path, "--help"], standalone_mode=False)
    assert "Usage: " in out.getvalue(), path
    print(*path)
"""
# What a laptop's client does: "" ends well, else a part of its one error.
CLIENT = {
    "status": "", "status --json": "", "top --once": "", "device list": "", "device show {device}": "", "job list": "",
    "lease list": "", "host list": "", "explain device {device}": "",
    "bench small.onnx --on android --repeat 3": "", "run small.onnx --on android": "",
    "compare small.onnx small.onnx --on android": "", "memory small.onnx --on android": "",
    "sweep small.onnx --on android --threads 1,2": "", "sustain small.onnx --on android --for 5s": "",
    "tune small.onnx --on android --trials 2": "", "shell --on android -- id": "",
    "lease run --on android -- true": "", "job show {job}": "", "logs {job}": "", "watch {job}": "",
    "job output {job} -o run.pftrace": "", "board -o board.html": "", "export --format csv -o out.csv": "",
    "history small.onnx": "", "model show small.onnx": "no TVM", "compile small.onnx --target host": "no TVM",
    "model make small_cnn -o other.onnx": "[tvm]", "export --format parquet -o out.parquet": "pyarrow",
    "builder start": "[tvm,builders]", "demo": "[tvm]",
}  # fmt: skip


@pytest.fixture(scope="module")
def alone(wheel, tmp_path_factory):
    """The `farm` of an environment that has the wheel, without extras."""
    folder = tmp_path_factory.mktemp("alone")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=60)
    install = [str(folder / "bin/pip"), "install", "--quiet", "--disable-pip-version-check", "--retries=1", str(wheel)]
    done = subprocess.run(install, capture_output=True, text=True, timeout=280, check=False)
    if done.returncode:
        pytest.skip(f"pip cannot install the wheel's dependencies here: {done.stderr.strip()[-200:]}")
    return folder / "bin/farm"


@pytest.mark.timeout(400)
def test_every_command_has_its_help_without_extras(alone, tmp_path):
    command = [str(alone.with_name("python")), "-c", HELP]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) > 100


@pytest.mark.timeout(500)
def test_a_client_without_extras_has_all_of_a_farm(alone, tmp_path):
    (tmp_path / "small.onnx").write_bytes(small_cnn().SerializeToString())
    with virtual_farm(phones_of(["oneplus-12"])) as farm:
        farm.wait_ready(1)
        names = {"device": farm.status()["devices"][0]["name"], "job": ""}
        mine = {name: value for name, value in os.environ.items() if not name.startswith(("FARM_", "PYTHON"))} | {
            "FARM_SOCKET": str(farm.socket), "HOME": str(tmp_path), "PATH": os.defpath,
        }  # fmt: skip
        for words, refusal in CLIENT.items():
            typed = [str(alone), *words.format(**names).split()]
            streams = {"capture_output": True, "text": True}
            done = subprocess.run(typed, cwd=tmp_path, env=mine, timeout=240, check=False, **streams)
            assert "Traceback" not in done.stderr, (words, done)
            assert (done.returncode != 0, refusal in done.stderr) == (bool(refusal), True), (words, done)
            if not refusal:
                names["job"] = names["job"] or next((job["id"] for job in farm.client.call("job.list")["jobs"]), "")
