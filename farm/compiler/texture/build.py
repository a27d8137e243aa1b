"""A Relax module to one with textures, its operators placed and scheduled, and to the module that checks them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tvm import relax

from farm.compiler.texture.check import CheckModule, check_module
from farm.compiler.texture.layout import in_pixels
from farm.compiler.texture.network import decide, placed
from farm.compiler.texture.placing import TextureReport


@dataclass(frozen=True, slots=True)
class TextureBuild:
    """What becomes of a model."""

    module: Any  # functions with textures are scheduled, the others not yet
    checks: CheckModule
    report: TextureReport


def with_textures(module: Any, target: Any, refused: Mapping[str, str], fuse: Callable[[Any], Any]) -> TextureBuild:
    """Decide which operators use textures, and build them.

    Args:
        module: of a model, simplified.
        target: an OpenCL target.
        refused: functions that must not use textures, with the reason of each.
        fuse: legalises and fuses, as for a build without textures.

    Raises:
        Exception: TVM's own kinds.
    """
    with target:
        fused = relax.transform.RewriteDataflowReshape()(fuse(in_pixels(module)))  # views: they take buffers
        decided = decide(fused, target, refused)
        checks = check_module(fused, decided)
        made = placed(fused, decided)
        return TextureBuild(relax.transform.DeadCodeElimination()(made), checks, decided.report())
