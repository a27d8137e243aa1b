"""Those who use the farm while it storms."""

from __future__ import annotations

import random
import threading
from pathlib import Path

from benchmarks.rpc_client import ClientHangsError, RpcClient
from benchmarks.storm_weather import Tally, Weather
from farm.common.errors import FarmError, HostError

SESSION_TIMEOUT_S = 8.0  # what the users give: nobody is stuck for longer with a phone that hangs


class User(threading.Thread):
    """Somebody who takes any phone, computes on it and checks the numbers; sometimes their program dies."""

    def __init__(self, weather: Weather, tally: Tally, tracker: tuple[str, int], golden: Path, seed: str) -> None:
        super().__init__(name=f"user {seed}", daemon=True)
        self._weather = weather
        self._tally = tally
        self._tracker = tracker
        self._golden = golden
        self._random = random.Random(seed)
        self.failure: FarmError | None = None

    def run(self) -> None:
        goes_on = True
        while goes_on:
            try:
                with RpcClient(self._tracker, self._golden) as client:
                    goes_on = self._use(client)
            except ClientHangsError:
                self._tally.hung += 1
            except HostError:
                self._tally.add("client crashed")  # TVM aborts where a broken session surprises it

    def _use(self, client: RpcClient) -> bool:
        while True:
            with self._weather.turn() as goes_on:
                if not goes_on:
                    return False
                if not client.ask("open", key="android", timeout_s=SESSION_TIMEOUT_S)["ok"]:
                    self._tally.add("session refused")
                    continue
                if self._random.random() < 0.05:
                    client.tell("run")
                    client.answer()  # it has begun
                    client.kill()
                    self._tally.add("client killed")
                    return True
                ran = client.ask("run")
                if not ran["ok"] and "wrong numbers" in ran["error"]:
                    self._tally.wrong.append(ran["error"])
                self._tally.add("session served" if ran["ok"] else "session broken")
                client.ask("close")
