"""A Relax module to one whose operators with textures are scheduled, and to the module that checks them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tvm import relax

from farm.compiler.texture.check import CheckModule, check_module
from farm.compiler.texture.layout import to_pixel_layout
from farm.compiler.texture.network import decide_textures, with_scopes_applied
from farm.compiler.texture.scopes import TextureReport


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
        fused = relax.transform.RewriteDataflowReshape()(fuse(to_pixel_layout(module)))  # views: they take buffers
        decided = decide_textures(fused, target, refused)
        checks = check_module(fused, decided)
        made = with_scopes_applied(fused, decided)
        return TextureBuild(relax.transform.DeadCodeElimination()(made), checks, decided.report())
