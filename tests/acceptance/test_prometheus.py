"""Debian's Prometheus scrapes a whole virtual farm and evaluates the shipped alerts against faults.

The rules are the shipped ones but for their patience: every `for:` is 2 s here, and scrape and evaluation come each
second, so that a fault is judged within seconds. What the patience itself does, `prometheus/tests` shows.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from farm.simulation.virtual_farm import VirtualFarm, virtual_farm
from tests.support.waiting import HANG_S
from tests.support.whole_farm import Story, phones, plug_all, until, until_ready, until_status

pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="no prometheus: Debian's package is called so"
)

RULES = Path(__file__).parents[2] / "prometheus"
HUB = "1-4"
PLACES = {"left": "1-4.1", "right": "1-4.2", "far": "2-1.3"}
PROFILES = {"left": "oneplus-12", "right": "galaxy-s9", "far": "galaxy-a55"}
# What these say is about the host that runs the tests.
OF_THE_HOST = {"FarmDiskLow", "FarmLoopSlow", "FarmStoreSlow", "FarmAdbSlow"}
SCRAPES = 4  # in a row that must be there before a farm counts as watched


class Prometheus:
    """A running one, asked by HTTP."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._log = log
        listening: list[int] = []
        while not listening:  # the port is the kernel's choice
            assert process.poll() is None, log.read_text()
            found = psutil.Process(process.pid).net_connections("tcp")
            listening = [each.laddr.port for each in found if each.status == psutil.CONN_LISTEN]
            time.sleep(0.02)
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{listening[0]}/api/v1", timeout=HANG_S)

    def close(self) -> None:
        """Ask no more."""
        self._client.close()

    def get(self, path: str, **fields: str) -> Any:
        answer = self._client.get(path, params=fields)
        return answer.json()["data"] if answer.status_code == 200 else None

    def value(self, query: str) -> float:
        """Of the first sample; 0 when there is none."""
        found = self.get("/query", query=query)
        return float(found["result"][0]["value"][1]) if found and found["result"] else 0.0

    def alerts(self, state: str = "firing") -> dict[str, dict[str, str]]:
        """Labels of the alerts in this state, by name."""
        found = self.get("/alerts") or {"alerts": []}
        return {each["labels"]["alertname"]: each["labels"] for each in found["alerts"] if each["state"] == state}

    def fires(self, name: str) -> dict[str, str]:
        """Wait until an alert fires; returns its labels."""
        until(lambda: name in self.alerts())
        return self.alerts()[name]

    def calms(self, name: str) -> None:
        """Wait until it does not any more."""
        until(lambda: name not in self.alerts())


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[Prometheus]:
    """Scrape `target` each second by the shipped configuration and rules."""
    folder.mkdir()
    config = (RULES / "prometheus.yml").read_text()
    config, changed = re.subn(r"_interval: \d+s", "_interval: 1s", config)
    assert changed == 2
    config = config.replace('"127.0.0.1:9191"', f'"{target}"').replace("global:", "global:\n  scrape_timeout: 1s")
    (folder / "prometheus.yml").write_text(config)
    shutil.copy(RULES / "recording.yml", folder)
    impatient, changed = re.subn(r"for: \d+m", "for: 2s", (RULES / "alerts.yml").read_text())
    assert changed > 15
    (folder / "alerts.yml").write_text(impatient)
    log = folder / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            ["prometheus", "--config.file=prometheus.yml", f"--storage.tsdb.path={folder / 'data'}",
             "--web.listen-address=127.0.0.1:0", "--log.level=warn"],
            cwd=folder, stdout=out, stderr=out,
        )  # fmt: skip
        try:
            watch = Prometheus(process, log)
            try:
                yield watch
            finally:
                watch.close()
        finally:
            process.terminate()
            process.wait(HANG_S)


@pytest.fixture(scope="module")
def farm() -> Iterator[VirtualFarm]:
    with virtual_farm(PROFILES, places=PLACES) as farm:
        farm.wait_ready(len(PROFILES))
        yield farm
        assert "Traceback" not in farm.daemon.log.read_text(errors="replace")


@pytest.fixture(scope="module")
def watch(farm: VirtualFarm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    target = farm.status()["web"].removeprefix("http://").rstrip("/")
    with prometheus(tmp_path_factory.mktemp("prometheus") / "run", target) as watch:
        until(lambda: watch.value('count_over_time(up{job="farm"}[1m])') >= SCRAPES)
        yield watch


@pytest.fixture(autouse=True)
def calm(farm: VirtualFarm, watch: Prometheus) -> Iterator[None]:
    """Each test begins and ends with a farm that nothing is wrong with."""
    until(lambda: set(watch.alerts()) <= OF_THE_HOST)
    yield
    until_ready(farm)


def test_a_healthy_farm_fires_nothing(farm: VirtualFarm, watch: Prometheus) -> None:
    before = watch.value('count_over_time(up{job="farm"}[1h])')
    seen: set[str] = set()

    def watched() -> bool:
        seen.update(watch.alerts())
        return watch.value('count_over_time(up{job="farm"}[1h])') >= before + 5

    until(watched)
    assert seen <= OF_THE_HOST
    assert watch.value("sum(farm_devices{state='idle'})") == len(PROFILES)
    assert watch.value("farm:devices_ready:ratio") == 1.0
    targets = watch.get("/targets")["activeTargets"]
    assert [(each["health"], each["lastError"]) for each in targets] == [("up", "")]
    rules = [rule for group in watch.get("/rules")["groups"] for rule in group["rules"]]
    assert {(rule["health"], rule.get("lastError", "")) for rule in rules} == {("ok", "")}


def test_a_hub_that_vanishes_pages_until_it_is_back(farm: VirtualFarm, watch: Prometheus) -> None:
    farm.lab.unplug_hub(HUB)
    assert watch.fires("FarmHubDown")["hub"] == HUB
    farm.lab.plug_hub(HUB)
    watch.calms("FarmHubDown")


def test_who_waits_for_phones_that_are_all_away_pages(farm: VirtualFarm, watch: Prometheus) -> None:
    for phone in phones(farm):
        farm.lab.unplug(phone.nickname)
    until_status(farm, lambda status: all(row["life"] == "gone" for row in status["devices"]))
    waiting = subprocess.Popen(
        [sys.executable, "-m", "farm", "lease", "acquire", "--on", "android", "--for", "1m"],
        env={**os.environ, "FARM_SOCKET": str(farm.socket)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert watch.fires("FarmNobodyGetsAPhone")["severity"] == "critical"
    finally:
        waiting.send_signal(signal.SIGINT)
        waiting.wait(HANG_S)
        plug_all(farm)
    watch.calms("FarmNobodyGetsAPhone")


def test_false_numbers_page_and_a_quarantine_by_hand_waits(farm: VirtualFarm, watch: Prometheus) -> None:
    liar, other, *_ = phones(farm)
    story = Story(farm)
    farm.lab.fault(liar.nickname, "wrong_numbers")
    farm.lab.server_crash(liar.nickname)
    story.until("device.quarantined", subject=liar.name)
    assert farm.farm("device", "quarantine", other.name, "--reason", "a crack").returncode == 0
    assert watch.fires("FarmFalseNumbers")["device"] == liar.name
    assert watch.fires("FarmDeviceQuarantined")["fault"] == "order"
    farm.lab.good_kernels(liar.nickname)
    for phone in (liar, other):
        assert farm.farm("device", "release", phone.name).returncode == 0
    for alert in ("FarmFalseNumbers", "FarmDeviceQuarantined"):
        watch.calms(alert)


def test_a_database_that_cannot_be_written_pages_until_it_can(farm: VirtualFarm, watch: Prometheus) -> None:
    database = farm.folder / "state" / "farm.db"
    away = database.with_name("away.db")
    database.rename(away)
    try:
        farm.lab.server_crash(phones(farm)[0].nickname)  # what happens then is to be written down
        watch.fires("FarmStoreNotWritable")
    finally:
        away.rename(database)
    watch.calms("FarmStoreNotWritable")


def test_a_daemon_that_hangs_pages(farm: VirtualFarm, watch: Prometheus) -> None:
    daemon = psutil.Process(farm.status()["pid"])
    daemon.suspend()
    try:
        watch.fires("FarmDown")
    finally:
        daemon.resume()
    watch.calms("FarmDown")
