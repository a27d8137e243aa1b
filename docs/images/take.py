"""Takes the pictures of docs/service.md from a virtual farm: `python docs/images/take.py [FOLDER] [--all]`.

With `--all`, every page in light and dark, in the width of a desktop and of a phone, to check a changed style sheet.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

from farm.simulation.virtual_farm import VirtualFarm, phones_of, virtual_farm
from farm.zoo import onnx_bytes
from tests.support.browser import NARROW, WIDE, Watched, chromium, profile

PROFILES = ("oneplus-12", "galaxy-a55", "galaxy-s9", "realme-gt-neo3", "huawei-mate-20", "oneplus-5t")
LIMIT_S = 180.0
PICTURES = (("fleet", ""), ("device", ""), ("bench", "-dark"), ("queue", ""))
PICTURE = {"width": 1120, "height": 620}
DEVICE_HEIGHT = 500  # its facts: the rest would cost kilobytes


def main(arguments: list[str]) -> int:
    """Take them."""
    everything = "--all" in arguments
    folder = Path(next((each for each in arguments if not each.startswith("-")), Path(__file__).parent))
    folder.mkdir(parents=True, exist_ok=True)
    with virtual_farm(phones_of(PROFILES), physics_speed=4.0, report=_say) as farm, chromium() as browser:
        farm.wait_ready(len(PROFILES))
        pages = _busy(farm)
        url = farm.status()["web"]
        wide = WIDE if everything else PICTURE
        looks = [("light", wide, ""), ("dark", wide, "-dark")]
        looks += [("light", NARROW, "-phone"), ("dark", NARROW, "-dark-phone")]
        for scheme, viewport, end in looks if everything else looks[:2]:
            with profile(browser, url, color_scheme=scheme, viewport=viewport) as web:
                for name, path in pages.items():
                    if everything or (name, end) in PICTURES:
                        _take(web, path, folder / f"web-{name}{end}.png", whole=everything)
    return 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def _busy(farm: VirtualFarm) -> dict[str, str]:
    """Give the farm something to show; returns its pages by name."""
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "small_cnn.onnx"
        model.write_bytes(onnx_bytes("small_cnn"))

        def run(*words: str) -> str:
            done = farm.farm(*words, timeout_s=LIMIT_S)
            found: list[str] = re.findall(r"\b(?:bench|compare|tune|shell)-[0-9a-f]{12}\b", done.stdout + done.stderr)
            return found[0] if found else ""

        phone = ("--on", "soc=sm8650")
        first = run("bench", str(model), *phone, "--measure", "6", "--detach")
        compared = run("compare", str(model), str(model), "--on", "soc=s5e8845", "--measure", "5", "--detach")
        run("shell", *phone, "exit 3")
        tuned = run("tune", str(model), "--on", "soc=sm8650", "--trials", "16")
        farm.client.call(
            "job.submit", spec={"kind": "lease", "on": "soc=sm8650", "seconds": 1800.0, "note": "looking at heat"}
        )
        waiting = [run("bench", str(model), *phone, "--detach") for _ in range(4)]
        run("bench", str(model), *phone, "--hold", "--detach")
        running = run("tune", str(model), "--on", "soc=s5e8845", "--trials", "400", "--detach")
        for job in (first, compared):
            farm.client.call("job.watch", jobs=[job], on_progress=lambda _: None)
    names = {"bench": first, "compare": compared, "tune": tuned, "waiting": waiting[0], "tuning": running}
    device = next(row["name"] for row in farm.status()["devices"] if row["holder"])
    pages = {"fleet": "/", "device": f"/devices/{device}", "jobs": "/jobs", "queue": "/queue", "leases": "/leases"}
    pages |= {
        "bundles": "/bundles",
        "history": "/history?model=small_cnn.onnx",
        "records": "/records",
        "sign-in": "/sign-in",
    }
    return pages | {name: f"/jobs/{job}" for name, job in names.items()}


def _take(web: Watched, path: str, file: Path, *, whole: bool) -> None:
    page = web.open(path)
    page.locator("#live[data-live=on]").wait_for()
    if page.locator("figure[data-plot]").count():
        page.locator("figure canvas").first.wait_for()
    plots = page.locator(".results")
    if not whole and plots.count():
        page.screenshot(path=file, full_page=True, clip=plots.bounding_box())  # the page's bar stays where it is
    elif not whole and path.startswith("/devices/"):
        page.screenshot(path=file, clip={"x": 0, "y": 0, "width": PICTURE["width"], "height": DEVICE_HEIGHT})
    else:
        page.screenshot(path=file, full_page=whole)
    sys.stdout.write(f"{file}: {file.stat().st_size // 1000} kB\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
