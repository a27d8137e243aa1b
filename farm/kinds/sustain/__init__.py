"""Kind `sustain`: a model that runs without a pause for minutes: when the phone throttles, and how fast it stays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from farm.common.durations import format_duration
from farm.common.errors import Code, UserError
from farm.kinds.energy import PowerSource
from farm.measure.conditions import AGAIN, Reason, Verdict
from farm.model.identity import CpuCluster
from farm.model.placement import placed
from farm.model.specs import DEFAULT_TIMEOUT_S, Bounds, Cores, Help, HistorySpec, ModelTask, Seconds, Threads, TopApp

MIN_SUSTAIN_S = 5.0
MAX_SUSTAIN_S = 4 * 3600.0
DEFAULT_SUSTAIN_S = 1800.0
MINUTE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SustainSpec(HistorySpec):
    """Run a model without a pause: how fast it is in each minute, when the phone throttles, and where it stays."""

    kind: ClassVar[str] = "sustain"

    sustain_s: Annotated[
        Seconds,
        Bounds(ge=MIN_SUSTAIN_S, le=MAX_SUSTAIN_S),
        Help("How long: 30m, 1h.", flag="--for", form="duration"),
    ] = DEFAULT_SUSTAIN_S
    threads: Threads = None
    cores: Cores = None
    top_app: TopApp = False

    def __post_init__(self) -> None:
        """Refuse a run that its own time limit would end."""
        if self.timeout_s <= self.sustain_s:
            raise UserError(
                f"a run of {self.sustain_s:g} s does not fit into the attempt's time limit of {self.timeout_s:g} s",
                Code.BAD_SPEC,
                hint=f"leave out timeout, or timeout_s = {self.sustain_s + DEFAULT_TIMEOUT_S:g}",
            )

    @classmethod
    def completed(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """The time limit is what a bench has, and the run."""
        limit_s = given.get("timeout_s") or DEFAULT_TIMEOUT_S + float(given.get("sustain_s") or DEFAULT_SUSTAIN_S)
        return {**given, "timeout_s": limit_s}

    def check_cores(self, clusters: Sequence[CpuCluster], phone: str) -> None:
        """Refuse a phone that has not its cores, or too few for its threads."""
        placed(self.threads, self.cores, self.top_app, clusters, phone)


def stretch_words(bucket_s: float) -> str:
    """How long the rows of a result's `buckets` are: `minute`, or `1 s` of a short run."""
    return "minute" if bucket_s == MINUTE_S else f"{bucket_s:g} s"


def form_words(result: Mapping[str, Any]) -> str:
    """The form of a result's course, a clause; "" where its numbers say it."""
    if result.get("form") == "exponential":
        return f"it became slower little by little, time constant {format_duration(result['time_constant_s'])}"
    if result.get("form") == "oscillation":
        return f"two speeds in turns, {format_duration(result['period_s'])} for both"
    return ""


def doubts(result: Mapping[str, Any], name: str) -> Iterator[Reason]:
    """The doubts about the end of a run. `name`: of the run, in their words."""
    if result["stopped"]:
        cause = f"{name} ended after {format_duration(result['seconds'])}"
        yield Reason("ended_early", Verdict.SUSPECT, cause, result["stopped"], AGAIN)
    if result["plateau"] is None:
        last = stretch_words(result["bucket_s"])
        cause = f"the speed of {name} still changed at its end"
        yield Reason("no_plateau", Verdict.SUSPECT, cause, f"Compared is its last {last}.", "run longer: --for 1h")


@dataclass(frozen=True, slots=True, kw_only=True)
class SustainTask(ModelTask[SustainSpec]):
    """A sustained run on one phone."""

    spec: SustainSpec  # declared again: pydantic does not look up the parameter of a base class
    stop_c: float  # the battery's temperature at which the run ends
    power: PowerSource
