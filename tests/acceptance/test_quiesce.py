"""Virtual phones are quiet while they measure, and as they were afterwards, whatever happens in between."""

import psutil
import pytest

from tests.support.whole_farm import Phone, Story, answer, phones, running_farm, until, until_ready

LEDGER = "/data/local/tmp/farm/quiesce"
GOVERNORS = "cat /sys/devices/system/cpu/cpufreq/policy*/scaling_governor /sys/class/kgsl/kgsl-3d0/min_pwrlevel"
SETTINGS = "; ".join(
    f"settings get {key}"
    for key in (
        "global window_animation_scale",
        "global stay_on_while_plugged_in",
        "global airplane_mode_on",
        "system screen_brightness",
        "system screen_off_timeout",
    )
)
AS_IT_WAS = ["1.0", "0", "0", "102", "60000"]
GENTLE = ["0", "7", "0", "10", "2147483647"]
FULL = ["0", "7", "1", "10", "2147483647"]


@pytest.fixture(scope="module")
def farm():
    with running_farm("oneplus-12+root", "galaxy-a55") as farm:
        for phone in phones(farm):
            phone.shell("settings put global window_animation_scale 1.0")
        yield farm
        farm.client.close()  # that of the second daemon


@pytest.fixture
def rooted(farm):
    until_ready(farm)
    return phones(farm)[0]


@pytest.fixture
def plain(farm):
    until_ready(farm)
    return phones(farm)[1]


def settings(phone: Phone):
    return phone.shell(SETTINGS).split()


def begin(farm, phone, model, level, *more):
    """A bench that lasts until it is ended; returns its id once the phone is quiet."""
    options = ("--on", phone.name, "--quiesce", level, "--measure", "600", "--half-width", "0.0005", *more)
    (job,) = answer(farm.farm("bench", model, *options, "--detach", "--json"))["jobs"]
    until(lambda: "begun" in state(phone))
    return job["id"]


def state(phone):
    """Whether the changes are made: the time of the watch is longer than a begin may take."""
    done = phone.shell(f"cat {LEDGER}/deadline /proc/uptime 2>/dev/null; true").split()
    return ["begun"] if len(done) > 2 and int(done[0]) - float(done[1]) > 100 else []


def newest_worker(farm):
    """Workers are forks of the zygote and have its words: the latest is the attempt's."""
    family = psutil.Process(farm.daemon.process.pid).children()
    return max((each for zygote in family for each in zygote.children()), key=lambda each: each.create_time())


def quiet_again(phone):
    """The values once nobody has the phone and farm cleans it no more, which ends what a shell runs on it."""
    until_ready(phone.farm)
    until(lambda: phone.shell(f"ls -d {LEDGER} 2>/dev/null; true") == "")
    return settings(phone)


def test_a_bench_says_what_was_in_force_and_the_phone_is_as_it_was(farm, plain, model):
    before = settings(plain), plain.shell("dumpsys power | grep mWakefulness=")
    done = farm.farm("bench", model, "--on", plain.name, "--repeat", "3", "--quiesce", "full", "--json")
    certificate = answer(done)["results"][0]["certificate"]
    said = certificate["quiesce"]
    assert said["level"] == "full"
    assert {"animations", "awake", "airplane", "background"} <= said["took"].keys()
    assert all("needs root" in why or "stays on" in why for why in said["refused"]["awake"])
    assert (settings(plain), plain.shell("dumpsys power | grep mWakefulness=")) == before
    assert plain.shell(f"ls -d {LEDGER} 2>/dev/null; true") == ""


def test_gentle_is_the_default_and_off_changes_nothing(farm, plain, model):
    said = [
        answer(farm.farm("bench", model, "--on", plain.name, "--repeat", "3", "--json", *more))["results"][0]
        for more in ((), ("--quiesce", "off"))
    ]
    levels = [each["certificate"]["quiesce"]["level"] for each in said]
    assert levels == ["gentle", "off"]


def test_clocks_are_pinned_while_it_measures_where_root_allows(farm, rooted, model):
    before = rooted.shell(GOVERNORS).split()
    job = begin(farm, rooted, model, "full")
    during = rooted.shell(GOVERNORS).split()
    assert during == ["performance"] * (len(during) - 1) + ["0"]
    assert before != during
    assert settings(rooted)[2] == "1"
    farm.farm("job", "cancel", job)
    assert quiet_again(rooted) == AS_IT_WAS
    assert rooted.shell(GOVERNORS).split() == before


def test_pinned_clocks_are_told_beside_the_number(farm, rooted, model):
    done = farm.farm("bench", model, "--on", rooted.name, "--repeat", "3", "--quiesce", "full")
    assert "in force: " in done.stdout
    assert "Clocks pinned at their highest: cpu, fixed-performance, gpu; heat still lowers them." in done.stdout


def test_a_killed_worker_leaves_nothing_changed(farm, rooted, model):
    job = begin(farm, rooted, model, "full", "--max-attempts", "1")
    story = Story(farm)
    newest_worker(farm).kill()
    story.until("job.failed", subject=job)
    assert quiet_again(rooted) == AS_IT_WAS


def test_a_phone_that_is_unplugged_is_changed_back_when_it_returns(farm, rooted, model):
    job = begin(farm, rooted, model, "full", "--max-attempts", "1")
    story = Story(farm)
    farm.lab.unplug(rooted.nickname)
    story.until("lease.released")
    farm.farm("job", "cancel", job)
    farm.lab.plug(rooted.nickname)
    story.until("device.ready")
    assert quiet_again(rooted) == AS_IT_WAS


def test_a_phone_that_reboots_has_its_settings_again_before_anybody_gets_it(farm, rooted, model):
    before = rooted.shell(GOVERNORS).split()
    job = begin(farm, rooted, model, "full", "--max-attempts", "1")
    story = Story(farm)
    farm.lab.reboot(rooted.nickname)
    story.until("device.ready")
    farm.farm("job", "cancel", job)
    assert quiet_again(rooted) == AS_IT_WAS
    assert rooted.shell(GOVERNORS).split() == before


def test_the_next_daemon_changes_back_what_the_killed_one_left(farm, plain, model):
    job, name = begin(farm, plain, model, "full"), plain.name
    assert settings(plain) == FULL
    since = farm.status()["seq"]
    farm.daemon.kill()
    farm.client.close()
    farm.client = farm.daemon.start()
    story = Story(farm, since)
    # The job continues by itself, and not before.
    story.until("device.ready", subject=name)
    story.order("device.tidied", "device.ready", device=name)
    farm.farm("job", "cancel", job)
    story.until("job.cancelled", subject=job)
    assert quiet_again(plain) == AS_IT_WAS


def test_a_phone_that_cut_itself_off_comes_back_by_itself(model):
    """Farm takes an emulator's link for one that airplane mode does not cut. Here it does."""
    with running_farm("galaxy-a55", config="[quiesce]\nrestore_after_s = 5.0\n") as farm:
        (phone,) = phones(farm)
        phone.shell("settings put global window_animation_scale 1.0")
        farm.lab.fault(phone.nickname, "network", on=True)
        story = Story(farm)
        options = ("--on", phone.name, "--quiesce", "full", "--max-attempts", "1")
        (job,) = answer(farm.farm("bench", model, *options, "--detach", "--json"))["jobs"]
        story.until("lease.granted", job=job["id"])
        story.until("device.gone")
        story.until("job.failed", subject=job["id"])
        story.until("device.ready")
        assert quiet_again(phone) == AS_IT_WAS


def test_a_phone_that_farm_reaches_by_its_radio_keeps_them(farm, plain, model):
    farm.lab.fault(plain.nickname, "network", on=True)
    try:
        plain.shell("sh /data/local/tmp/farm/bin/quiesce.sh begin full network me 60")
        assert settings(plain) == GENTLE
        assert plain.shell("echo there") == "there\n"
    finally:
        plain.shell("sh /data/local/tmp/farm/bin/quiesce.sh end")
        farm.lab.fault(plain.nickname, "network", on=False)
    assert settings(plain) == AS_IT_WAS
