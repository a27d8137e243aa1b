"""The outcome of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy.typing as npt

from farm.client.model import Outcome
from farm.common.errors import ModelError, ProtocolError


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """One of an output's largest elements. `label` is empty when there were no labels."""

    index: int  # into the flattened output
    value: float
    label: str = ""
    at: tuple[int, ...] = ()  # the same place by axis, in an output of several rows


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome(Outcome):
    """A model run once on one phone."""

    file_field: ClassVar[str] = "outputs"

    outputs: Mapping[str, npt.NDArray[Any]] = field(repr=False)  # by name; empty unless it succeeded
    top_k: Mapping[str, tuple[Ranked, ...]]  # the largest elements of each output, when asked for

    def brief(self) -> str:
        """Where its outputs are."""
        return f"farm job show {self.job.id}" if self.ok else "-"

    @classmethod
    def details(cls, _spec: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
        """The fields beside those that every kind has."""
        return {
            "outputs": {},
            "top_k": {name: tuple(map(_ranked, rows)) for name, rows in (result.get("top_k") or {}).items()},
        }

    def with_file(self, data: bytes) -> Self:
        """With its outputs, which are an artifact.

        Raises:
            ProtocolError: it is no .npz of plain arrays.
        """
        return replace(self, outputs=load_arrays(data))


def load_arrays(source: Path | bytes) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an .npz, never anything that runs code.

    Raises:
        ProtocolError: it is no .npz of plain arrays.
    """
    from farm.compiler.inputs import each_array

    try:
        return dict(each_array(source, "the outputs file"))
    except (OSError, ModelError) as error:
        raise ProtocolError("the outputs are no .npz file of plain arrays", evidence=str(error)) from error


def _ranked(row: Mapping[str, Any]) -> Ranked:
    return Ranked(
        index=int(row["index"]), value=float(row["value"]), label=row.get("label") or "", at=tuple(row.get("at") or ())
    )
