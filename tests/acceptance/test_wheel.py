"""The wheel: built, installed, compared with the checkout; a farm run from it opens nothing of the checkout."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.tvm import ROOT

pytest.importorskip("hatchling", reason="what builds the wheel is not installed")
PLACES = {  # in the checkout -> in the wheel
    "farm": "farm",
    "device_scripts": "farm/device_scripts",
    "systemd": "farm/systemd",
    "prometheus": "farm/prometheus",
    "grafana": "farm/grafana",
    "man": "share/man/man1",
}
BUILD = "import sys; from hatchling.build import build_wheel; build_wheel(sys.argv[1])"
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
                    ["lease", "run", "--on", "android", "--", "true"], ["man"], ["completions", "bash"],
                    ["install-service", "--print"], ["doctor"]):
        done = lab.farm(*command)
        assert done.returncode in (0, 1 if command == ["doctor"] else 0), done
        assert "Traceback" not in done.stderr, done
pathlib.Path(os.environ["CHECKOUT"], "README.md").read_text()  # is noticed
print(pathlib.Path(farm.__file__).parents[1])
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Where the wheel is installed."""
    dist, place = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("environment") / "site-packages"
    subprocess.run([sys.executable, "-c", BUILD, str(dist)], cwd=ROOT, check=True, capture_output=True, timeout=60)
    (wheel,) = dist.glob("*.whl")
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
        "CHECKOUT": str(ROOT), "OPENED": str(opened), "PYTHONWARNINGS": "ignore",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", USE], cwd=tmp_path, env=mine, capture_output=True, text=True, timeout=115, check=False
    )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()) == installed
    assert opened.read_text().splitlines() == [str(ROOT / "README.md")]
