"""Which phones a bench means, what its options may be, and when a worker is overdue."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.core.device import DeviceView, Life, Service
from farm.core.errors import NoPhoneError, ProtocolError
from farm.core.selector import SelectorError
from farm.jobs.attempt import (
    HELLO_LIMIT_S,
    SILENCE_LIMIT_S,
    AttemptTimeoutError,
    Watch,
    WorkerSilentError,
    next_look_s,
    overdue,
)
from farm.jobs.choice import choose
from farm.jobs.messages import (
    MAX_MESSAGE_BYTES,
    Exited,
    Failed,
    Kill,
    Ready,
    Spawn,
    Spawned,
    SpawnFailed,
    decode_from_zygote,
    decode_to_zygote,
    encode,
)
from farm.jobs.model import DEFAULT_TIMEOUT_S, BadSpecError, BenchSpec, BenchTask

SHA = "a" * 64
FIELDS = {"model": SHA, "name": "net.onnx", "selector": "android"}


def phone(name, life=Life.READY, **changes):
    given = {"serial": name, "adopted": True, "aliases": ("android", name), "labels": {"gpu": "adreno-740"}}
    return DeviceView(name=name, life=life, **(given | changes))


def spec(**changes):
    return BenchSpec.from_wire(FIELDS | changes)


def names(views):
    return [view.name for view in views]


def test_every_match_that_is_ready_or_will_be():
    phones = [
        phone("a"),
        phone("b", Life.PROVISIONING),
        phone("c", Life.QUARANTINED),
        phone("d", Life.GONE),
        phone("e", service=Service.DRAINING),
        phone("f", adopted=False),
        phone("g", aliases=("g",)),
    ]
    choice = choose(spec(), phones)
    assert (names(choice.chosen), names(choice.spare)) == (["a", "b"], [])


def test_a_limit_takes_ready_phones_first_and_keeps_the_others_as_stand_ins():
    phones = [phone("a", Life.CHECKING), phone("b"), phone("c")]
    choice = choose(spec(devices=2), phones)
    assert (names(choice.chosen), names(choice.spare)) == (["b", "c"], ["a"])


def test_no_match_names_the_nearest_and_no_usable_match_says_why():
    with pytest.raises(NoPhoneError, match="nearest is adreno-740"):
        choose(spec(selector="gpu=adreno-74"), [phone("a")])
    broken = phone("a", Life.QUARANTINED, reason="wrong numbers")
    with pytest.raises(NoPhoneError, match=r"a is quarantined \(wrong numbers\); b is maintenance"):
        choose(spec(), [broken, phone("b", service=Service.MAINTENANCE)])
    with pytest.raises(SelectorError):
        choose(spec(selector="a=b=,"), [phone("a")])


def test_options_left_out_have_their_defaults():
    assert spec(devices=None, inputs=None, timeout_s=None) == spec()
    assert spec().timeout_s == DEFAULT_TIMEOUT_S


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"repeat": 0}, "'repeat'"),
        ({"repeat": "many"}, "'repeat'"),
        ({"model": "../x"}, "'model'"),
        ({"model": None}, "'model'"),
        ({"target": "CPU; rm"}, "'target'"),
        ({"devices": 0}, "'devices'"),
        ({"timeout_s": -1}, "'timeout_s'"),
        ({"timeout_s": float("nan")}, "'timeout_s'"),
        ({"repeats": 3}, "'repeats'"),
    ],
)
def test_a_bad_option_is_named(change, named):
    with pytest.raises(BadSpecError, match=named):
        spec(**change)


def test_a_task_survives_the_wire():
    task = BenchTask(SHA, "net", None, "a", "cpu", {"kind": "llvm", "mattr": ["+neon"]}, 2, 3, 0, "/cache")
    assert BenchTask.from_wire(task.to_wire()) == task


def test_a_worker_is_overdue_by_its_time_or_by_its_silence():
    watch = Watch(started_s=100.0, heard_s=100.0)
    assert overdue(watch, 600, 100 + HELLO_LIMIT_S - 0.01) is None
    assert isinstance(overdue(watch, 600, 100 + HELLO_LIMIT_S), WorkerSilentError)
    watch.greeted, watch.heard_s = True, 150.0
    assert overdue(watch, 600, 150 + SILENCE_LIMIT_S - 0.01) is None
    assert isinstance(overdue(watch, 600, 150 + SILENCE_LIMIT_S), WorkerSilentError)
    watch.heard_s = 699.0
    assert isinstance(overdue(watch, 600, 700.0), AttemptTimeoutError)


@given(
    st.floats(0, 1e6), st.floats(0, 1e3), st.floats(0.1, 1e4), st.booleans(), st.floats(0, 1),
)  # fmt: skip
def test_nothing_is_overdue_before_the_next_look(started, since, timeout, greeted, part):
    watch = Watch(started, started + min(since, timeout), greeted)
    look = next_look_s(watch, timeout)
    before = watch.heard_s + (look - watch.heard_s) * part * 0.999
    if before < look - 1e-6:
        assert overdue(watch, timeout, before) is None
    assert overdue(watch, timeout, look + 1e-6) is not None


SPAWN = Spawn("a.1", 3, "m", "t", "/door", "/folder", {"x": [1, {"y": None}]}, 10, 20, 1, 2)


@pytest.mark.parametrize("message", [SPAWN, Kill("a", 9)], ids=lambda m: m.type)
def test_orders_survive_the_wire(message):
    assert decode_to_zygote(encode(message)) == message


@pytest.mark.parametrize(
    "message",
    [Ready(1, 1, {"tvm": "0.27"}), Failed("m", "e"), Spawned("a", 5), SpawnFailed("a", "m"), Exited("a", 5, None, 9)],
    ids=lambda m: m.type,
)
def test_reports_survive_the_wire(message):
    assert decode_from_zygote(encode(message)) == message


def test_what_does_not_fit_never_leaves():
    with pytest.raises(ProtocolError, match="at most"):
        encode(Spawn("a", 1, "m", "t", "d", "f", {"x": "y" * MAX_MESSAGE_BYTES}, 1, 1))
    with pytest.raises(ProtocolError, match="not JSON"):
        encode(Spawn("a", 1, "m", "t", "d", "f", {"x": object()}, 1, 1))


@given(st.binary(max_size=200) | st.sampled_from([b'{"type":"kill"}', b'{"type":"exited","pid":"x"}', b"[" * 5000]))
def test_bytes_are_no_zygote_message(packet):
    for decode in (decode_to_zygote, decode_from_zygote):
        with pytest.raises(ProtocolError):
            decode(packet)


def test_a_phone_that_only_waits_for_adoption_is_named():
    with pytest.raises(NoPhoneError) as caught:
        choose(spec(), [phone("stranger", Life.NEW, adopted=False)])
    assert "none is adopted" in caught.value.message
    assert caught.value.hint == "let one in: farm device adopt stranger"
