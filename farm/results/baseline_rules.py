"""The baseline of a result: the stored results of a branch that may be compared with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from farm.common.durations import many
from farm.measure.conditions import reasons_of
from farm.measure.regression import MAX_RESULTS, MIN_RESULTS, ratio_to_baseline
from farm.results.ci import CiAnswer, CiCase, FailLimit, answer_of
from farm.results.series import COMPARABLE_BY, changes_in, has_interval, point_of, series_key

DIRTY = "-dirty"  # behind a commit: the folder had changes that are in no commit
# What results that are not comparable differ in, in words; the model's file differs with each commit.
_DIFFERENCES = {
    "epoch": "system version of the phone", "target": "target", "precision": "precision", "tuned": "use of records",
    "textures": "use of textures", "inputs": "shapes and types of inputs",
    "placement": "threads and cores", "kernel": "reference kernel",
}  # fmt: skip


def judged(new: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], branch: str, limit: FailLimit) -> CiCase:
    """A new result against the baseline among stored results of its phone.

    Args:
        new: a row of `history.list`.
        rows: such rows, newest first.
        branch: whose results are the baseline.
        limit: by how much the new result may be slower.
    """
    model, device = str(new["name"]), str(new["device"])
    if new["verdict"] != "trusted" or not has_interval(new):
        why = _gravest(new.get("reasons", ())) or "it has no finite median"
        return CiCase(model, device, CiAnswer.CANNOT_TELL, f"the result is {new['verdict']}: {why}")
    baseline, why = baseline_of(new, rows, branch)
    if why:
        return CiCase(model, device, CiAnswer.NO_BASELINE, why)
    found = ratio_to_baseline([point_of(row) for row in baseline], point_of(new))
    against = f"{branch}, {found.results} results"
    answer = answer_of(found.low, found.high, limit)
    return CiCase(model, device, answer, against, found.ratio, found.low, found.high)


def baseline_of(
    new: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], branch: str
) -> tuple[list[Mapping[str, Any]], str]:
    """The results of a branch to compare a new one with, oldest first; or none, and a sentence that says why.

    They are of the same model name, phone, system version and kind of build, trusted, of other commits than the new one
    and of those without further changes, and at the level since the last change of level. `rows` are newest first.
    """
    where = f"of {new['name']} on {new['device']}"
    found = [
        row for row in rows
        if row["name"] == new["name"] and row["device"] == new["device"] and row.get("branch") == branch
        and row["job"] != new["job"] and row.get("commit") != new.get("commit") and has_interval(row)
    ]  # fmt: skip
    if not found:
        return [], f"{branch} has no result {where}: farm ci bench on that branch makes one"
    alike = [row for row in found if _key(row) == _key(new)]
    if not alike:
        return [], f"the results of {branch} {where} are of another {_difference(found[0], new)}"
    sound = [row for row in alike if row["verdict"] == "trusted" and not str(row.get("commit", "")).endswith(DIRTY)]
    if not sound:
        return [], f"no result of {branch} {where} is trusted and of a clean commit"
    oldest_first = sound[::-1]
    changed = changes_in(oldest_first)
    level = oldest_first[changed[-1].index if changed else 0 :][-MAX_RESULTS:]
    if len(level) < MIN_RESULTS:
        since = " since its level changed" if changed else ""
        return [], f"{branch} has {len(level)} of {MIN_RESULTS} results {where} that a baseline needs{since}"
    return level, ""


def _gravest(reasons: Sequence[Mapping[str, Any]]) -> str:
    """The gravest reason of a verdict, and how many more there are; "" if there is none."""
    causes = [each.cause for each in reasons_of(reasons)]
    return "".join(causes[:1]) + (f" (and {many(len(causes) - 1, 'more reason')})" if len(causes) > 1 else "")


def _key(row: Mapping[str, Any]) -> tuple[str, ...]:
    return series_key(row, [name for name in COMPARABLE_BY if name != "model"])


def _difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    return " and ".join(
        words for name, words in _DIFFERENCES.items() if series_key(old, [name]) != series_key(new, [name])
    )
