"""Causes: one short line, wherever a fault or a reason is made."""

from hypothesis import given
from hypothesis import strategies as st

from farm.common.causes import MAX_CAUSE_CHARS, brief, cause_of, fold
from farm.measure.conditions import Reason, Verdict, reasons_of
from farm.model.health import Finding, FindingKind, Quarantine

LONG = "the golden check failed: conv2d on opencl differs by 0.3 at 17 of 4096 places; dense was right"


@given(st.text())
def test_a_cause_is_one_short_line_without_a_second_clause(text):
    short = brief(text)
    assert len(short) <= MAX_CAUSE_CHARS
    assert not set(short) & set(";\n")
    assert brief(short) == short


def test_a_long_last_word_is_cut_and_not_left_out():
    assert brief("battery gauge says " + "x" * 99) == "battery gauge says " + "x" * 40 + "…"


def test_what_a_cause_leaves_out_is_evidence():
    short, evidence = fold(LONG, "kernel log")
    assert short == "the golden check failed: conv2d on opencl differs by 0.3 at…"
    assert evidence == f"{LONG}\nkernel log"
    assert fold(short, evidence) == (short, evidence)
    assert fold("too hot") == ("too hot", "")


def test_records_fold_what_a_phone_said_at_length():
    for record in (
        Reason("x", Verdict.SUSPECT, LONG),
        Finding(FindingKind.GPU_FAULT, LONG),
        Quarantine(LONG),
    ):
        assert (record.cause, record.evidence) == fold(LONG)


def test_records_of_before_have_a_cause():
    old = [{"code": "x", "verdict": "suspect", "sentence": LONG}, {"verdict": "rejected", "sentence": "it stepped"}]
    rejected, suspect = reasons_of(old)
    assert (rejected.verdict, rejected.cause) == (Verdict.REJECTED, "it stepped")
    assert (suspect.cause, suspect.evidence) == fold(LONG)
    assert cause_of({"what": "hot", "hint": ""}) == "hot"
    assert cause_of({}) == ""
