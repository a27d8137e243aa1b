"""The thermal gate on a whole farm: a bench waits for a phone that is too warm, is told why, and runs afterwards."""

import json
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.whole_farm import Story, until

WARM = re.compile(r"skin 41\.\d °C is above 38 °C for bench")  # its thermometer trembles
# Warm enough for a bench to wait, not for others. Quick, so that the test is. A busy host warms the CPU of its phones.
CONFIG = """
[probe]
every_s = 0.3
[heat]
cool_for_s = 0.5
[heat.bench]
cpu_c = 105.0
gpu_c = 105.0
[aliases]
measured = "android"
[gates.tvm_class]
measured = "bench"
"""

pytestmark = pytest.mark.farm("oneplus-12", config=CONFIG)


def close(session):
    session._sess.get_function("CloseRPCConnection")()


def test_a_bench_waits_while_it_is_told_why_and_runs_when_it_is_cool(farm, phone, model):
    story = Story(farm)
    farm.lab.heat(phone.nickname, 41.2)
    cooling = story.until("device.cooling", subject=phone.name)
    assert cooling["data"]["classes"] == ["bench"]
    done = farm.farm("bench", str(model), "--on", "android", "--repeat", "3", "--detach", "--json")
    (job,) = json.loads(done.stdout)["jobs"]
    until(lambda: WARM.search(farm.farm("explain", "job", job["id"]).stdout))
    device = phone.row
    assert (device["state"], device["heat"]) == ("ready", "ok")
    assert "bench" in device["closed"]
    until(lambda: WARM.search(farm.farm("status").stdout))
    # Nobody else waits for it: another class has the phone meanwhile.
    assert farm.farm("shell", "--on", "android", "--", "true").returncode == 0
    farm.lab.cool(phone.nickname)
    story.until("device.cool", subject=phone.name)
    story.until("job.done", subject=job["id"])
    story.order("device.cooling", "device.cool", "lease.granted")
    assert phone.row["closed"] == {}


def test_above_the_last_limit_its_holder_loses_the_phone_and_what_ran_there_ends(farm, phone):
    story = Story(farm)
    done = farm.farm("shell", "--on", "android", "--detach", "--json", "--", "sleep", "600")
    assert done.returncode == 0, done.stderr
    story.until("attempt.started")
    farm.lab.heat(phone.nickname, 70.0)
    revoked = story.until("lease.revoked")
    assert re.search(r"dangerously hot: skin (69|70)\.\d °C is above 65 °C", revoked["data"]["reason"])
    ended = story.until("attempt.ended")
    assert (ended["data"]["error"]["code"], ended["data"]["error"]["fault"]) == ("too_hot", "phone")
    story.order("lease.hot", "lease.revoked", "device.recovering", "attempt.ended")
    story.until("device.ready", subject=phone.name)
    farm.lab.cool(phone.nickname)
    story.until("device.cool", subject=phone.name)


def test_a_stock_key_may_be_for_benchmarks(farm, phone):
    from tvm import rpc

    story = Story(farm)
    farm.lab.heat(phone.nickname, 41.2)
    story.until("device.cooling", subject=phone.name)
    tracker = rpc.connect_tracker(*farm.tracker())
    close(tracker.request("android", session_timeout=60))  # any other key is for no class in particular
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(rpc.connect_tracker(*farm.tracker()).request, "measured", session_timeout=60)
        try:
            until(lambda: "waits for measured" in farm.farm("explain", "key", "measured").stdout)
            until(lambda: WARM.search(farm.farm("explain", "key", "measured").stdout))
        finally:
            farm.lab.cool(phone.nickname)  # else the client waits forever, and the pool for the client
        close(waiting.result(timeout=60))
    story.until("device.cool", subject=phone.name)
