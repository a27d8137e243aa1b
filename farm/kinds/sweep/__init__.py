"""Kind `sweep`: one build under several numbers of threads and choices of cores, in turns, with a recommended one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Annotated, ClassVar

from farm.common.errors import Code, UserError
from farm.common.limits import CORES_FORM, MAX_CORES
from farm.model.identity import CpuCluster
from farm.model.placement import ThreadPlacement, placed
from farm.model.specs import MEASURING, Bounds, HalfWidth, Help, MeasureSeconds, MeasureSpec, ModelTask, TopApp, Whole

MAX_VALUES = 16  # of one option
MAX_SETTINGS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSpec(MeasureSpec):
    """Time one build under each number of threads on each choice of cores, in turns."""

    kind: ClassVar[str] = "sweep"

    threads: Annotated[
        tuple[Annotated[Whole, Bounds(ge=1, le=MAX_CORES)], ...],
        Bounds(max_length=MAX_VALUES),
        Help("Numbers of threads of TVM's pool: 1,2,4.", form="threads", group=MEASURING),
    ] = ()
    cores: Annotated[
        tuple[Annotated[str, Bounds(pattern=CORES_FORM)], ...],
        Bounds(max_length=MAX_VALUES),
        Help("Choices of cores: big, little, or a mask as 0xf0.", form="cores", group=MEASURING),
    ] = ()
    top_app: TopApp = False
    half_width: HalfWidth = 0.01
    measure_s: MeasureSeconds = 30.0

    def __post_init__(self) -> None:
        """Refuse what leaves nothing to choose from."""
        count = (len(set(self.threads)) or 1) * (len(set(self.cores)) or 1)
        if not 2 <= count <= MAX_SETTINGS:
            raise UserError(
                f"a sweep has 2 to {MAX_SETTINGS} settings, not {count}",
                Code.BAD_SPEC,
                hint="--threads 1,2,4, --cores big,little, or both: every number on every choice",
            )

    def settings_on(
        self, clusters: Sequence[CpuCluster], phone: str
    ) -> tuple[tuple[ThreadPlacement, ...], tuple[str, ...]]:
        """A placement for each number of threads on each choice of cores; and why the phone cannot have the others.

        Raises:
            UserError: a number, or a choice, goes with nothing on this phone; or one setting is left.
        """
        found: dict[tuple[int | None, str | None], ThreadPlacement] = {}
        refused: dict[tuple[int | None, str | None], UserError] = {}
        for pair in product(self.threads or (None,), self.cores or (None,)):
            try:
                found[pair] = placed(*pair, self.top_app, clusters, phone)
            except UserError as error:
                refused[pair] = error
        for (threads, cores), why in refused.items():
            if not any(each[0] == threads for each in found) or not any(each[1] == cores for each in found):
                raise why
        placements = tuple(dict.fromkeys(found.values()))
        if len(placements) < 2:
            raise UserError(f"all settings are the same on {phone}", hint="other --threads or --cores")
        return placements, tuple(why.message for why in refused.values())

    def check_cores(self, clusters: Sequence[CpuCluster], phone: str) -> None:
        """Refuse a phone that has not the cores of each value."""
        self.settings_on(clusters, phone)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepTask(ModelTask[SweepSpec]):
    """A sweep for one phone: a placement for each setting."""

    spec: SweepSpec  # declared again: pydantic does not look up the parameter of a base class
    left_out: tuple[str, ...] = ()  # settings that this phone cannot have, in words
