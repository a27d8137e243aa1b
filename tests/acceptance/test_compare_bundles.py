"""One model on one phone under two runtime bundles in turns, and the phone's own bundle back however that ends."""

import pytest

from farm.common.errors import ExitCode
from tests.support.foreign_build import foreign_build
from tests.support.whole_farm import ON_PHONE, Story, answer, running_farm, until, until_ready

RUNS = f"grep ^bundle= {ON_PHONE}/farm/run/state"  # of the server on the phone
UNDER_BOTH = ("--bundle", "virtual", "--bundle-b", "other")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    with running_farm("oneplus-12") as farm:
        folder = tmp_path_factory.mktemp("bundles")
        for name, versions in (("other", ""), ("newer", 'tvm_version = "0.99.0"\nffi_version = "0.99.0"\n')):
            foreign_build(farm.folder / "bundle", folder / name, versions)
            (folder / name / "build.txt").write_text(f"another build: {name}\n")
            answer(farm.farm("bundle", "add", str(folder / name), "--name", name, "--json"))
        # The bundle of a phone is the one that was named last.
        answer(farm.farm("bundle", "add", str(farm.folder / "bundle"), "--name", "virtual", "--json"))
        yield farm


@pytest.fixture(scope="module")
def hashes(whole):
    return {bundle["name"]: bundle["hash"] for bundle in answer(whole.farm("bundle", "list", "--json"))["bundles"]}


def own_again(farm, phone, hashes):
    """The phone is ready, runs its own bundle and has no other."""
    until_ready(farm)
    assert phone.row["bundle"] == hashes["virtual"]
    phone.server()
    assert phone.shell(RUNS).strip() == f"bundle={hashes['virtual']}"
    until(lambda: phone.shell(f"ls -A {ON_PHONE}/farm/bundles").split() == [hashes["virtual"]])


def test_a_model_is_timed_under_both_and_the_phone_gets_its_own_back(farm, phone, hashes, model):
    story = Story(farm)
    done = farm.farm(
        "compare", str(model), "--on", "android", *UNDER_BOTH, "--measure", "4", "--min-effect", "0.2", "--json",
        timeout_s=170,
    )  # fmt: skip
    (result,) = answer(done)["results"]
    for side, name in (("a", "virtual"), ("b", "other")):
        assert result[side]["bundle"] == {"name": name, "hash": hashes[name], "tvm": result["versions"]["apache-tvm"]}
        assert result[side]["max_abs_error"] < 1e-4
        assert result[side]["library_sha256"] == result["a"]["library_sha256"]
    assert result["comparison"]["pairs"] >= 2
    assert result["comparison"]["answer"] in ("same", "cannot tell")
    own_again(farm, phone, hashes)
    story.until("attempt.ended")
    story.until("device.ready")
    # Back on its own before the lease is over, and no bundle was sent twice.
    story.order("attempt.ended", "device.provisioning", "lease.released", "device.ready", device=phone.name)
    pushed = [event["data"] for event in story.events if event["kind"] == "device.pushing"]
    sent = [each["total_bytes"] for each in pushed if each["sent_bytes"] == each["total_bytes"]]
    assert len(sent) == len(set(sent)) >= 1


@pytest.fixture
def under_other(farm, phone, hashes, model):
    """The id of a comparison whose phone runs the bundle that is not its own, and the story from before it."""
    story = Story(farm)
    done = farm.farm("compare", str(model), "--on", "android", *UNDER_BOTH, "--measure", "600", "--detach", "--json")
    (job,) = (each["id"] for each in answer(done)["jobs"])
    until(lambda: phone.row["bundle"] == hashes["other"])
    yield job, story
    farm.farm("job", "cancel", job)


@pytest.mark.parametrize("end", ["cancel", "kick"])
def test_whoever_waits_for_the_phone_gets_it_with_its_own_bundle(farm, phone, hashes, under_other, end):
    job, _ = under_other
    if end == "cancel":
        assert farm.farm("job", "cancel", job).returncode == ExitCode.OK
    else:
        assert farm.farm("lease", "kick", phone.name).returncode == ExitCode.OK
    assert farm.farm("shell", "--on", "android", "--", RUNS).stdout.strip() == f"bundle={hashes['virtual']}"
    own_again(farm, phone, hashes)


def test_a_killed_daemon_leaves_it_to_the_next_one(farm, phone, hashes, under_other):
    job, _ = under_other
    farm.daemon.kill()
    farm.daemon.start().close()
    farm.farm("job", "cancel", job)
    own_again(farm, phone, hashes)
