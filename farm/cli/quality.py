"""How right builds are on labelled inputs: which loss these find, a build's line, and a comparison's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm.cli.local import scratch_folder
from farm.cli.output import print_json, print_line, print_note, print_table
from farm.common.durations import many
from farm.common.errors import UserError
from farm.common.files import short_hash
from farm.measure.conditions import ratio_words

if TYPE_CHECKING:
    from farm.client import Client
    from farm.client.model import Outcome
    from farm.measure.quality import Scores

_SPEED = {"same": "as fast", "cannot tell": "of unknown speed"}
_QUALITY = {"same": "as good", "cannot tell": "of unknown quality"}


def print_found_loss(labelled: Path, metric: str) -> None:
    """Print beforehand which loss so many labelled inputs find."""
    from farm.compiler.labelled import labelled_count

    if metric.startswith("top"):
        print_note(found_loss_words(labelled_count(labelled)))


def found_loss_words(count: int) -> str:
    """Which loss of right answers so many labelled inputs find, and how many find one point."""
    from farm.measure.quality import LOSS, found_loss, needed_inputs

    found, needed = found_loss(count), needed_inputs()
    verb = "is" if count == 1 else "are"
    which = f"find a loss of {100 * found:.1f} points" if found < 1 else f"{verb} too few to find any loss"
    more = f"; {needed:,} find one of {100 * LOSS:.0f} point" if count < needed else ""
    return f"{many(count, 'labelled input', ',')} {which} with 95 % power, if of 4 changed answers 3 are lost{more}"


def print_quality(results: Sequence[Mapping[str, Any]]) -> None:
    """A line for each phone."""
    from farm.measure.quality import METRICS

    rows = []
    for each in results:
        found = each["quality"]
        metric = METRICS[found["metric"]]
        ends = f"{metric.digits(found['low'])} to {metric.digits(found['high'])}"
        rows.append(
            (each["device"], metric.name, metric.words(found["value"]), f"{ends} {metric.unit}", f"{found['count']:,}")
        )
    print_table(("PHONE", "METRIC", "VALUE", "95 % RANGE", "INPUTS"), rows)


def both_words(compared: Mapping[str, Any], quality: Mapping[str, Any]) -> str:
    """One line on speed and quality of B, seen from A: "B is faster and worse: ..."."""
    from farm.measure.quality import QualityComparison

    speed = _SPEED.get(compared["answer"], compared["answer"])
    good = _QUALITY.get(quality["answer"], quality["answer"])
    about = QualityComparison.from_wire(quality).sentence.partition(": ")[2]
    return f"B is {speed} and {good}: B / A {ratio_words(compared['ratio'])}; {about}"


def needed_words(quality: Mapping[str, Any]) -> list[str]:
    """How many labelled inputs would tell, where they do not."""
    if quality["answer"] != "cannot tell":
        return []
    from farm.measure.quality import METRICS

    metric = METRICS[quality["metric"]]
    loss = f"{metric.digits(quality['loss'])} {'points' if metric.unit == '%' else metric.unit}".rstrip()
    return [f"{many(quality['needed'], 'labelled input', ',')} would find a loss of {loss} with 95 % power"]


def compare_stored_quality(farm: Client, a: Outcome, b: Outcome, *, json: bool) -> None:
    """Compare two runs on the same labelled inputs, input by input.

    Raises:
        UserError: they had none, or not the same.
    """
    from farm.measure.quality import compare_quality

    for each in (a, b):
        if not each.result.get("quality"):
            raise UserError(f"{each.job.id} had no labelled inputs", hint="farm run MODEL --on SELECTOR --quality FILE")
    one, other = (each.result["quality"] for each in (a, b))
    if (one["data"], one["metric"]) != (other["data"], other["metric"]):
        had = " and ".join(f"{each['metric']} of {short_hash(each['data'])}" for each in (one, other))
        raise UserError(f"the two were not scored alike: {had}", hint="run both with the same --quality and --metric")
    try:
        found = compare_quality(_stored_scores(farm, one), _stored_scores(farm, other))
    except (KeyError, ValueError) as error:  # scores that no worker of farm's wrote
        raise UserError(
            "the scores of the two runs cannot be read", hint="run both again", evidence=str(error)
        ) from error
    wire = found.to_wire()
    if json:
        print_json({"ok": True, "a": a.job.id, "b": b.job.id, "quality": wire})
        return
    for line in (found.sentence, *(f"  {line}" for line in needed_words(wire))):
        print_line(line)


def _stored_scores(farm: Client, quality: Mapping[str, Any]) -> Scores:
    from farm.kinds.outcomes import load_arrays
    from farm.measure.quality import METRICS, Scores

    with scratch_folder() as folder:
        path = Path(folder) / "scores.npz"
        farm.get_file(quality["scores"], path)
        kept = load_arrays(path)
    return Scores(METRICS[quality["metric"]], kept["counts"], kept["weights"], float(kept["peak"]))
