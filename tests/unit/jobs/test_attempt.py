"""One attempt as the daemon sees it: when its worker is overdue, what it is told, which reports are taken."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.common.errors import Code, ProtocolError
from farm.jobs.attempt import (
    HELLO_LIMIT_S,
    MAX_REPORT_BYTES,
    SILENCE_LIMIT_S,
    AttemptTimeoutError,
    HeartbeatWatch,
    check_report,
    next_check_s,
    overdue,
)
from farm.jobs.messages import (
    MAX_MESSAGE_BYTES,
    Exited,
    Kill,
    Ready,
    Spawn,
    Spawned,
    decode_from_zygote,
    decode_to_zygote,
    encode,
)
from farm.jobs.worker_output import MAX_KEPT_BYTES, MAX_LINE_BYTES, LineSplitter
from farm.kinds.bench import BenchSpec
from farm.kinds.compare import CompareSpec, CompareTask
from farm.kinds.run import RunSpec
from farm.model.specs import BundleUse, EarlierBench, ModelTask, task_from_wire
from tests.support.errors import raises_code

MODEL = {
    "on": "android", "model": "a" * 64, "name": "net", "inputs": "c" * 64, "precision": "float16",
    "target": "adreno", "shapes": {"x": (1, 3)}, "dtypes": {"x": "float16"}, "records": "d" * 64,
}  # fmt: skip
SIDES = {**MODEL, "model_b": "b" * 64, "name_b": "other", "target_b": "cpu", "min_effect": 0.05}


BENCH = ModelTask(
    spec=BenchSpec(**MODEL, repeat=3, half_width=0.1), target={"kind": "opencl"}, cache="/cache",
    nominals={"kernel": 0.001}, virtual=True, earlier=(EarlierBench("a" * 64, "", "kernel", 0.001, 0.002),),
)  # fmt: skip
RUN = ModelTask(spec=RunSpec(**MODEL, top_k=3, labels="b" * 64), target={"kind": "opencl"}, cache="/cache")
COMPARE = CompareTask(
    spec=CompareSpec(**SIDES), target={"kind": "opencl"}, cache="/cache", target_b={"kind": "llvm"},
    bundles=(BundleUse(name="a", hash="1", tvm="0.20"), BundleUse(name="b", hash="2", tvm="0.20")),
)  # fmt: skip


@pytest.mark.parametrize(
    ("form", "task"),
    [(ModelTask[BenchSpec], BENCH), (ModelTask[RunSpec], RUN), (CompareTask, COMPARE)],
    ids=["bench", "run", "compare"],
)
def test_a_task_comes_to_the_worker_as_it_was_sent(form, task):
    assert task_from_wire(form, json.loads(json.dumps(task.to_wire()))) == task


def test_a_worker_is_overdue_by_its_time_or_by_its_silence():
    watch = HeartbeatWatch(started_s=100.0, last_message_s=100.0)
    assert overdue(watch, 600, 100 + HELLO_LIMIT_S - 0.01) is None
    assert overdue(watch, 600, 100 + HELLO_LIMIT_S).code == Code.WORKER_SILENT
    watch.greeted, watch.last_message_s = True, 150.0
    assert overdue(watch, 600, 150 + SILENCE_LIMIT_S - 0.01) is None
    assert overdue(watch, 600, 150 + SILENCE_LIMIT_S).code == Code.WORKER_SILENT
    watch.last_message_s = 699.0
    assert isinstance(overdue(watch, 600, 700.0), AttemptTimeoutError)


@given(
    st.floats(0, 1e6), st.floats(0, 1e3), st.floats(0.1, 1e4), st.booleans(), st.floats(0, 1),
)  # fmt: skip
def test_nothing_is_overdue_before_the_next_look(started, since, timeout, greeted, part):
    watch = HeartbeatWatch(started, started + min(since, timeout), greeted)
    look = next_check_s(watch, timeout)
    before = watch.last_message_s + (look - watch.last_message_s) * part * 0.999
    if before < look - 1e-6:
        assert overdue(watch, timeout, before) is None
    assert overdue(watch, timeout, look + 1e-6) is not None


ORDERS = [Spawn("a.1", 3, "m", "t", "/door", "/folder", {"x": [1, {"y": None}]}, 10, 20, 1, 2), Kill("a", 9)]
REPORTS = [Ready(1, {"tvm": "0.27"}), Spawned("a", 5), Spawned("a", 0, "m"), Exited("a", None, 9)]


@pytest.mark.parametrize("message", [*ORDERS, *REPORTS], ids=lambda m: m.type)
def test_messages_survive_the_wire(message):
    decode = decode_to_zygote if message in ORDERS else decode_from_zygote
    assert decode(encode(message)) == message


@pytest.mark.parametrize(("value", "said"), [("y" * MAX_MESSAGE_BYTES, "at most"), (object(), "not JSON")])
def test_what_does_not_fit_never_leaves(value, said):
    with pytest.raises(ProtocolError, match=said):
        encode(Spawn("a", 1, "m", "t", "d", "f", {"x": value}, 1, 1))


@given(st.binary(max_size=200) | st.sampled_from([b'{"type":"kill"}', b'{"type":"exited","pid":"x"}', b"[" * 5000]))
def test_bytes_are_no_zygote_message(packet):
    for decode in (decode_to_zygote, decode_from_zygote):
        with pytest.raises(ProtocolError):
            decode(packet)


def test_a_report_is_json_of_limited_size():
    check_report({"x": "y" * (MAX_REPORT_BYTES - 20)})
    with raises_code(Code.RESULT_TOO_LARGE, match="at most") as caught:
        check_report({"x": "y" * MAX_REPORT_BYTES})
    assert caught.value.fault == "user"
    assert "artifact" in caught.value.hint
    loop = {}
    loop["loop"] = loop
    for value in ({"x": float("nan")}, {"x": b"bytes"}, loop):
        with pytest.raises(ProtocolError, match="no JSON"):
            check_report(value)


def heard(*pieces, tail_bytes=1000):
    told = []
    lines = LineSplitter(told.append, tail_bytes=tail_bytes)
    for piece in pieces:
        lines.feed(piece)
    lines.finish()
    return "\n".join(told).split("\n") if told else [], lines


@given(st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]))), st.integers(1, 7))
def test_lines_come_whole_however_they_are_cut(texts, size):
    data = "".join(f"{text}\n" for text in texts).encode()
    found, lines = heard(*(data[i : i + size] for i in range(0, len(data), size)), tail_bytes=len(data) + 1)
    assert found == texts
    assert lines.tail.encode() == data
    assert lines.tail_is_all


def test_a_stream_without_line_ends_is_told_in_pieces():
    assert heard(b"one\r\ntw", b"o\xff")[0] == ["one", "two\ufffd"]
    found, lines = heard(b"x" * (2 * MAX_LINE_BYTES + 5))
    assert [len(line) for line in found] == [MAX_LINE_BYTES, MAX_LINE_BYTES, 5]
    assert (len(lines.tail), lines.tail_is_all) == (1000, False)


def test_a_stream_without_end_is_dropped_from_some_point_on_and_its_tail_kept():
    found, lines = heard(*[b"y\n" * 32_000] * (MAX_KEPT_BYTES // 64_000 + 1), b"more\n", b"end\n", tail_bytes=8)
    assert lines.full
    assert found[-1] == "(more than 4 MiB: the rest is not kept)"
    assert lines.tail == "ore\nend\n"
