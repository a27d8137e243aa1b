"""Which artifacts go: never a live job's, old ones unless a result needs them, then the unused longest."""

from hypothesis import given
from hypothesis import strategies as st

from farm.control.artifact_budget import DAY_S, RECENT_S, ArtifactFile, ArtifactRules, looks_tidy, to_drop

RULES = ArtifactRules(budget_bytes=100, keep_s=30 * DAY_S)


def test_old_ones_go_unless_a_job_or_a_result_needs_them():
    files = [ArtifactFile(name, 31 * DAY_S, 1) for name in ("nobodys", "live", "result")]
    assert to_drop(files, RULES, live={"live"}, results={"result"}) == ("nobodys",)


def test_for_room_results_go_after_the_others_and_live_ones_never():
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


NAMES = st.text("abcdef", min_size=1, max_size=2)
FILES = st.lists(
    st.builds(ArtifactFile, NAMES, st.floats(0, 60 * DAY_S), st.integers(0, 80)),
    unique_by=lambda f: f.sha256,
    max_size=12,
)


@given(FILES, st.frozensets(NAMES), st.frozensets(NAMES), st.integers(0, 200))
def test_whatever_lies_there(files, live, results, room):
    gone = set(to_drop(files, RULES, live=live, results=results, room_bytes=room))
    kept = [file for file in files if file.sha256 not in gone]
    assert not gone & live
    assert not any(file.unused_s <= RECENT_S for file in files if file.sha256 in gone)
    fits = sum(file.size_bytes for file in kept) + room <= RULES.budget_bytes
    assert fits or all(file.sha256 in live or file.unused_s <= RECENT_S for file in kept)
    assert not any(
        file.unused_s > RULES.keep_s and file.sha256 not in live | results and file.unused_s > RECENT_S for file in kept
    )
    if looks_tidy(files, RULES, room):
        assert not gone
    assert to_drop(kept, RULES, live=live, results=results, room_bytes=room) == ()
