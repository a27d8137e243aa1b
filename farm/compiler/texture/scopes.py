"""Which tensors lie in textures: pure decisions over operators and tensors, without TVM.

Each tensor has one scope that its producer and all its consumers share, so nothing is copied between scopes. It begins
in a texture if its form allows, and leaves it when an operator at one of its ends cannot be built so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from farm.common.durations import many

BUFFER = "global"
LANES = 4  # channels of a pixel
RANK = 5  # batch, chunks of channels, rows, columns, channels of a pixel; of weights output and input channels first
# TVM's forms of an image array: the dimension that makes its rows; those before it are layers, those after it columns.
_ROWS = {"global.texture-weight": 0, "global.texture-nhwc": 1, "global.texture": 2}
TEXTURES = tuple(_ROWS)
_TYPES = frozenset({"float16", "float32"})

Scopes = tuple[str, ...]  # of an operator's tensors, results last


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest image of a device, in pixels and layers (CL_DEVICE_IMAGE2D_MAX_*, CL_DEVICE_IMAGE_MAX_ARRAY_SIZE)."""

    side: int = 16384
    layers: int = 2048


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One call of a kernel: its function, and the tensors that it reads and writes, by number."""

    function: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]


@dataclass(slots=True)
class TensorScopes:
    """Where each tensor lies, and why those that could be in textures are not."""

    scopes: dict[int, str]  # of those in textures; the others are in buffers
    reasons: dict[str, str] = field(default_factory=dict)  # why a function does without some texture, by its name

    def of(self, operator: KernelCall) -> Scopes:
        """The scopes of an operator's tensors."""
        return tuple(self.scopes.get(each, BUFFER) for each in (*operator.reads, *operator.writes))


TryBuild = Callable[[str, Scopes], str]
"""Build a function for these scopes; returns why that does not work, or "" if it does."""


def image_scope(shape: Sequence[int], dtype: str, limits: Limits) -> tuple[str, str]:
    """The scope of a texture for a tensor, or "" and the reason why it is too large.

    Two empty strings if the tensor has no pixel layout.
    """
    if len(shape) != RANK or shape[-1] != LANES or dtype not in _TYPES:
        return "", ""
    pixels = shape[:-1]
    for scope, row in _ROWS.items():
        layers, rows, columns = math.prod(pixels[:row]), pixels[row], math.prod(pixels[row + 1 :])
        if layers <= limits.layers and max(rows, columns) <= limits.side:
            return scope, ""
    size = "x".join(map(str, shape))
    return "", f"its tensor {size} is no image of at most {limits.side} pixels a side and {limits.layers} layers"


def choose_scopes(operators: Sequence[KernelCall], textures: Mapping[int, str], try_build: TryBuild) -> TensorScopes:
    """The most tensors in textures with which every operator can be built.

    Where one cannot, its results go to buffers first; if that does not help, what it reads does, too. A tensor never
    comes back, so this ends.
    """
    chosen = TensorScopes(dict(textures))
    waiting = list(operators)
    while waiting:
        operator = waiting.pop(0)
        scopes = chosen.of(operator)
        if all(each == BUFFER for each in scopes) or not (reason := try_build(operator.function, scopes)):
            continue
        written = [each for each in operator.writes if each in chosen.scopes]
        leaving = set(written or (each for each in operator.reads if each in chosen.scopes))
        for tensor in leaving:
            del chosen.scopes[tensor]
        chosen.reasons[operator.function] = reason
        waiting += [each for each in operators if leaving & {*each.reads, *each.writes} and each not in waiting]
    return chosen


@dataclass(frozen=True, slots=True)
class TextureReport:
    """Which operators use textures, and which do not and why: as package and result say it."""

    textures: tuple[str, ...]  # functions that read or write at least one
    buffers: Mapping[str, str]  # functions that could, and use none: the reason of each

    def sentences(self) -> list[str]:
        """The same for people."""
        using = f"{many(len(self.textures), 'operator')} with textures"
        return [using, *(f"{name} has buffers: {reason}" for name, reason in self.buffers.items())]

    def to_wire(self) -> dict[str, Any]:
        """As `report_from_wire` reads it."""
        return {"textures": [*self.textures], "buffers": dict(self.buffers)}


def report_from_wire(fields: Mapping[str, Any]) -> TextureReport:
    """What `TextureReport.to_wire` gave."""
    return TextureReport(tuple(fields["textures"]), dict(fields["buffers"]))


def report(operators: Sequence[KernelCall], chosen: TensorScopes, able: Collection[str]) -> TextureReport:
    """What came of the choice. `able`: functions with a tensor that could lie in a texture, in any order."""
    using = {each.function for each in operators if any(scope != BUFFER for scope in chosen.of(each))}
    names = dict.fromkeys(each.function for each in operators)
    neighbour = "its tensors are shared with operators that need buffers"
    buffers = {name: chosen.reasons.get(name, neighbour) for name in names if name in able and name not in using}
    return TextureReport(tuple(name for name in names if name in using), buffers)
