"""A new runtime bundle reaches the phones one by one and in waves; a broken one takes no phone out of service."""

import json
import re
import shlex
import shutil
import sys
import threading

from farm.client import Client
from farm.common.errors import ExitCode
from tests.support.whole_farm import Story, answer, refused, running_farm, until, until_ready

QUICK = "[rollout]\nsoak_s = 0.2\nshare = 0.5\n"
DIES = "#!/system/bin/sh\nexit 3\n"
SCRIPT = 'abi = "x86_64"\nplatform = "linux-glibc"\n'
UNOPTIMISED = """\
from farm.worker import golden
plain = golden.host_target
golden.host_target = lambda *which: plain(*which) | {"opt-level": 0}
raise SystemExit(golden.main())
"""


def bundle(farm, folder, name, program="", *, toolchain="default"):
    """Add the farm's bundle under another name: the same with one more file, or with another `tvm_rpc`."""
    shutil.copytree(farm.folder / "bundle", folder / name)
    (folder / name / "build.txt").write_text(f"{name}\n")
    if program:
        (folder / name / "tvm_rpc").write_text(program)
        (folder / name / "bundle.toml").write_text(SCRIPT)
    options = ("--name", name, "--toolchain", toolchain, "--json")
    return answer(farm.farm("bundle", "add", str(folder / name), *options))


def listed(farm):
    return {each["name"]: each for each in answer(farm.farm("bundle", "list", "--json"))["bundles"]}


def phones(farm):
    return {row["name"]: row for row in farm.status()["devices"]}


def test_a_bundle_that_does_not_start_is_refused_and_no_phone_is_lost(tmp_path):
    with running_farm("oneplus-12", "oneplus-12", "oneplus-12", config=QUICK) as farm:
        good = listed(farm)["virtual"]
        assert good["state"] == "current"
        story = Story(farm)
        assert bundle(farm, tmp_path, "broken", DIES)["state"] == "candidate"
        farm.daemon.kill()
        farm.daemon.start().close()
        until(lambda: listed(farm)["broken"]["state"] == "refused")
        until_ready(farm)
        assert {row["bundle"] for row in phones(farm).values()} == {good["hash"]}
        story.read()
        kinds = [event["kind"] for event in story.events]
        assert "device.quarantined" not in kinds
        assert kinds.count("bundle.refused") == 1
        assert kinds.count("bundle.failed") == 1  # the canary only
        reason = listed(farm)["broken"]["reason"]
        assert "exited with 3" in reason or "did not start" in reason
        shown = farm.farm("bundle", "list").stdout
        assert f"refused: {reason}" in shown
        name = next(iter(phones(farm)))
        assert reason in farm.farm("explain", "device", name).stdout
        # A restart asks nothing of the phones again.
        farm.daemon.kill()
        farm.daemon.start().close()
        until_ready(farm)
        assert listed(farm)["broken"]["state"] == "refused"
        assert farm.farm("bundle", "remove", "broken").returncode == 0
        assert [*listed(farm)] == ["virtual"]


def test_a_good_bundle_reaches_every_phone_in_waves_and_back(tmp_path):
    with running_farm("oneplus-12", "oneplus-12", "oneplus-12", "oneplus-12", config=QUICK) as farm:
        story = Story(farm)
        second = bundle(farm, tmp_path, "second")
        story.until("bundle.current", hash=second["hash"])
        until_ready(farm)
        assert {row["bundle"] for row in phones(farm).values()} == {second["hash"]}
        out, canary, waves = set(), "", False
        for event in story.events:
            name = event["subject"]
            if event["kind"] == "bundle.canary":
                canary = event["data"]["device"]
            elif event["kind"] == "bundle.trying":
                waves = True
            elif event["kind"] == "device.provisioning":
                out.add(name)
                assert name == canary or waves
            elif event["kind"] == "device.ready":
                out.discard(name)
            assert len(out) <= 2
        states = {name: each["state"] for name, each in listed(farm).items()}
        assert states == {"virtual": "kept", "second": "current"}

        refused(farm.farm("bundle", "remove", "second"), ExitCode.USAGE, min(phones(farm)))
        refused(farm.farm("bundle", "rollback", "virtual"), ExitCode.USAGE, "neither a candidate nor current")
        refused(farm.farm("bundle", "promote", "second"), ExitCode.USAGE, "is current already")
        done = json.loads(farm.farm("bundle", "rollback", "second", "--json").stdout)
        assert done["state"] == "refused"
        assert "rolled back by" in done["reason"]
        until(lambda: {row["bundle"] for row in phones(farm).values()} == {listed(farm)["virtual"]["hash"]})
        until_ready(farm)
        assert answer(farm.farm("bundle", "promote", "second", "--json"))["state"] == "current"
        until(lambda: {row["bundle"] for row in phones(farm).values()} == {second["hash"]})
        until_ready(farm)


def test_a_slower_bundle_is_refused(tmp_path):
    (tmp_path / "golden.py").write_text(UNOPTIMISED)
    python = tmp_path / "python"
    here, unoptimised = shlex.quote(sys.executable), shlex.quote(str(tmp_path / "golden.py"))
    compiles = f'case "$*" in "-m farm.worker.golden "*) shift 2; exec {here} {unoptimised} "$@";; esac'
    python.write_text(f'#!/bin/sh\n{compiles}\nexec {here} "$@"\n')
    python.chmod(0o755)
    with running_farm("oneplus-12", "oneplus-12", config=QUICK) as farm:
        added = farm.farm("toolchain", "add", "slow", "--python", str(python))
        assert added.returncode == 0, added.stderr
        good, story = listed(farm)["virtual"], Story(farm)
        bundle(farm, tmp_path, "slower", toolchain="slow")
        refusal = story.until("bundle.refused")
        assert re.search(
            r"golden kernels take \d+\.\d\d times as long on cpu as with the previous bundle",
            refusal["data"]["reason"],
        )
        until_ready(farm)
        assert {row["bundle"] for row in phones(farm).values()} == {good["hash"]}
        assert {row["state"] for row in phones(farm).values()} == {"ready"}


def test_a_damaged_candidate_is_refused_and_a_phone_that_others_wait_for_gets_the_next_one_first(tmp_path):
    with running_farm("oneplus-12", config=QUICK) as farm, Client(farm.socket) as client:
        (name,) = phones(farm)
        with client.lease(on=name):
            damaged = bundle(farm, tmp_path, "damaged")
            stored = farm.folder / "state" / "bundles" / "objects" / damaged["hash"] / "files" / "build.txt"
            stored.chmod(0o644)
            stored.write_text("domaged\n")
        until(lambda: listed(farm)["damaged"]["state"] == "refused")
        assert "bundle damaged was removed or damaged on this host" in listed(farm)["damaged"]["reason"]
        until_ready(farm)

        story, waiting = Story(farm), threading.Thread(target=lease_once, args=(farm, name))
        with client.lease(on=name):
            waiting.start()
            second = bundle(farm, tmp_path, "second")
            why = "kept for the rollout of bundle second"
            until(lambda: why in farm.farm("explain", "device", name).stdout)
            until(lambda: answer(farm.farm("lease", "list", "--json"))["waiting"])
        waiting.join()
        story.until("bundle.current", hash=second["hash"])
        story.read()
        kinds = [event["kind"] for event in story.events]
        last_lease = len(kinds) - 1 - kinds[::-1].index("lease.granted")
        assert kinds.index("bundle.canary") < last_lease
        assert phones(farm)[name]["bundle"] == second["hash"]
        assert why not in farm.farm("explain", "device", name).stdout


def lease_once(farm, name):
    """Wait for the phone, and give it back."""
    with Client(farm.socket) as client, client.lease(on=name):
        pass
