"""Which artifacts go: never a live job's, old ones unless a result needs them, then the unused longest."""

from hypothesis import given
from hypothesis import strategies as st

from farm.control.artifact_rules import DAY_S, RECENT_S, SHARE, ArtifactFile, ArtifactRules, looks_tidy, to_drop

RULES = ArtifactRules(budget_bytes=100, keep_s=30 * DAY_S)


def test_old_ones_go_unless_a_job_or_a_result_needs_them():
    files = [ArtifactFile(name, 31 * DAY_S, 1) for name in ("nobodys", "live", "result")]
    assert to_drop(files, RULES, live={"live"}, results={"result"}) == ("nobodys",)


def test_to_free_space_results_go_after_the_others_and_live_ones_never():
    files = [
        ArtifactFile("live", 9 * DAY_S, 40),
        ArtifactFile("result", 8 * DAY_S, 40),
        ArtifactFile("old", 2 * DAY_S, 40),
        ArtifactFile("new", DAY_S, 40),
    ]
    needs = {"live": {"live"}, "results": {"result"}}
    assert to_drop(files, RULES, **needs) == ("old", "new")
    assert to_drop(files, RULES, **needs, room_bytes=60) == ("old", "new", "result")
    assert to_drop(files, RULES, **needs, room_bytes=1000) == ("old", "new", "result")


def test_what_came_just_now_stays_however_full_it_is():
    assert to_drop([ArtifactFile("new", RECENT_S, 1000)], RULES) == ()


def test_of_one_sender_what_is_beyond_a_share_goes_before_anything_that_others_need():
    files = [
        ArtifactFile("result", 2 * DAY_S, 10),
        ArtifactFile("ann's", 1.0, 10, "ann"),
        *(ArtifactFile(f"{name} of mallory", 60.0 * name, 20, "mallory", complete=name % 2 == 0) for name in range(4)),
    ]
    needs = {"results": {"result"}}
    assert to_drop(files, RULES, **needs) == ()  # there is room for all
    assert to_drop(files, RULES, **needs, room_bytes=1) == ("3 of mallory",)
    assert to_drop(files, RULES, **needs, room_bytes=50) == ("3 of mallory", "2 of mallory", "1 of mallory")
    assert to_drop(files, RULES, **needs, room_bytes=1000)[3:] == ("result",)
    assert to_drop(files, RULES, **needs, room_bytes=50, live={"3 of mallory"})[:2] == ("2 of mallory", "1 of mallory")


def test_old_ones_that_nobody_needs_go_before_anything_that_was_just_sent():
    """A sweep over models lost its first upload before it was submitted."""
    files = [
        *(ArtifactFile(f"old{number}", 2 * DAY_S + number, 13) for number in range(5)),
        *(ArtifactFile(f"mine{number}", 60.0 - number, 7, "ann") for number in range(5)),
    ]
    assert to_drop(files, RULES, room_bytes=7) == ("old4",)
    assert to_drop(files, RULES, room_bytes=68)[4:] == ("old0", "mine0")


NAMES = st.text("abcdef", min_size=1, max_size=2)
FILES = st.lists(
    st.builds(
        ArtifactFile,
        NAMES,
        st.floats(0, 60 * DAY_S),
        st.integers(0, 80),
        st.sampled_from(["", "ann", "bob"]),
        st.booleans(),
    ),
    unique_by=lambda f: f.name,
    max_size=12,
)


@given(FILES, st.frozensets(NAMES), st.frozensets(NAMES), st.integers(0, 200))
def test_whatever_lies_there(files, live, results, room):
    gone = set(to_drop(files, RULES, live=live, results=results, room_bytes=room))
    kept = [file for file in files if file.name not in gone]
    assert not gone & live
    assert not any(file.for_now and not file.sender for file in files if file.name in gone)
    fits = sum(file.size_bytes for file in kept) + room <= RULES.budget_bytes
    assert fits or all(file.name in live or file.for_now for file in kept)
    for sender in ("ann", "bob"):  # what is spared of one is at most a share, when others lack room
        spared = sum(
            file.size_bytes for file in kept if file.for_now and file.name not in live and file.sender == sender
        )
        lost = [file.size_bytes for file in files if file.for_now and file.sender == sender and file.name in gone]
        assert fits or spared <= RULES.budget_bytes // SHARE
        assert not lost or spared + max(lost) > RULES.budget_bytes // SHARE
    assert not any(
        file.unused_s > RULES.keep_s and file.name not in live | results and not file.for_now for file in kept
    )
    if looks_tidy(files, RULES, room):
        assert not gone
    assert to_drop(kept, RULES, live=live, results=results, room_bytes=room) == ()
