"""How right a build's outputs are on its phone: labelled inputs run in batches, scored, and kept as scores."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from farm.common.errors import Code, ModelError
from farm.compiler.build import Build
from farm.compiler.inputs import input_error, write_arrays
from farm.compiler.labelled import LabelledInputs, read_labelled
from farm.compiler.load import read
from farm.compiler.model import Array, TensorSpec
from farm.compiler.package import is_package, read_package
from farm.measure.conditions import Verdict
from farm.measure.quality import METRICS, QualityMetric, Scores, compare_quality, estimate_quality, peak_of, scored
from farm.model.specs import ModelTask
from farm.worker.channel import DaemonChannel
from farm.worker.measuring import about_build
from farm.worker.session import FirstRun

REPORTS = 4  # of the progress through all inputs


@dataclass(frozen=True, slots=True)
class QualityTask:
    """The labelled inputs of one build, and the metric."""

    inputs: LabelledInputs
    metric: QualityMetric

    def score(self, built: Build, ran: FirstRun, report: Callable[[str], None], side: str = "") -> Scores:
        """Run every batch on the phone. What the first run computed is computed again.

        Raises:
            ModelError: the outputs do not fit the labels.
            PhoneError: the phone failed.
        """
        data, count = self.inputs.fitted_to(built.name, built.inputs), len(self.inputs.labels)
        counts, weights = np.empty(count), np.empty(count)
        output, reported = ran.outputs[0], 0
        self.inputs.check_output(self.metric, TensorSpec(built.output_names[0], output.shape, output.dtype))
        for place, arrays in data.batches():
            if place.start * REPORTS >= reported * count:
                report(f"running labelled inputs{side}: {place.start} of {count}")
                reported += 1
            rows = data.rows(ran.run_again(arrays)[0], place.stop - place.start)
            try:
                counts[place], weights[place] = scored(self.metric, rows, data.labels[place])
            except ValueError as error:
                raise input_error(
                    f"{self.metric.name} of {built.name}: {error}", hint="labels are for the model's first output"
                ) from error
        return Scores(self.metric, counts, weights, peak_of(self.metric, data.labels))


def quality_task(task: ModelTask[Any], daemon: DaemonChannel, quality: str | None, metric: str) -> QualityTask | None:
    """The labelled inputs for a task's model; None: there are none.

    Args:
        task: whose model.
        daemon: has the artifacts.
        quality: the artifact of an .npz, if any.
        metric: its name.

    Raises:
        ModelError: they do not fit the model or the metric.
    """
    if quality is None:
        return None
    daemon.progress("reading the labelled inputs")
    data, name = daemon.artifact(task.spec.model), task.spec.name
    model = read_package(data, name) if is_package(data) else read(data, name)
    known = METRICS[metric]
    return QualityTask(read_labelled(daemon.artifact(quality), model, known, task.spec.shapes), known)


def judged_beside_quality(built: Build, outputs: Sequence[Array]) -> dict[str, Any]:
    """As `Build.judged`, but a precision that is too coarse is a note: what it costs is what is asked.

    Raises:
        FarmError: as `Build.judged`, for any other reason.
    """
    try:
        return built.judged(outputs)
    except ModelError as error:
        if error.code != Code.WRONG_PRECISION or built.reference is None:
            raise
        numerics = {"reference": built.reference.by, "note": error.message}
        return {"max_abs_error": None, "max_rel_error": None, "numerics": numerics}


def run_quality(
    task: ModelTask[Any], labelled: QualityTask, built: Build, ran: FirstRun, daemon: DaemonChannel
) -> dict[str, Any]:
    """Run the labelled inputs; the fields `quality` and `certificate` of a result.

    Raises:
        FarmError: as `QualityTask.score`.
    """
    scores = labelled.score(built, ran, daemon.progress)
    quality = {
        **asdict(estimate_quality(scores)),
        "output": built.output_names[0],
        "batch": labelled.inputs.batch,
        "data": task.spec.quality,
        "scores": keep_scores(scores, daemon),
    }
    certificate = {**about_build(built, task), "verdict": Verdict.TRUSTED, "reasons": [], "quality": quality}
    return {"quality": quality, "certificate": certificate}


def compared_quality(
    data: str | None,
    labelled: Sequence[QualityTask | None],
    sides: Sequence[tuple[Build, FirstRun]],
    daemon: DaemonChannel,
) -> dict[str, Any]:
    """Run the labelled inputs on A and on B; the field `quality` of a comparison, nothing where there are none.

    Args:
        data: the artifact with the labelled inputs.
        labelled: these, for A and for B.
        sides: A and B, each having run once.
        daemon: keeps the scores.

    Raises:
        FarmError: as `QualityTask.score`.
    """
    scores = [
        each.score(built, ran, daemon.progress, f" on {name}")
        for each, (built, ran), name in zip(labelled, sides, "AB", strict=True)
        if each
    ]
    if not scores:
        return {}
    a, b = scores
    ends = {"a": asdict(estimate_quality(a)), "b": asdict(estimate_quality(b))}
    kept = {"scores_a": keep_scores(a, daemon), "scores_b": keep_scores(b, daemon)}
    return {"quality": {**compare_quality(a, b).to_wire(), "intervals": ends, "data": data, **kept}}


def keep_scores(scores: Scores, daemon: DaemonChannel) -> str:
    """Keep the score of each input as an artifact; returns its SHA-256."""
    packed = io.BytesIO()
    write_arrays(packed, {"counts": scores.counts, "weights": scores.weights, "peak": np.array(scores.peak)})
    return daemon.put_artifact(packed.getvalue())
