"""The networks by name, and their files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from farm.core.errors import UserError
from farm.core.selector import nearest
from farm.zoo import mobilenet_v2, one_conv, resnet, small_cnn

MODELS: Mapping[str, Callable[[], Any]] = {
    "mobilenet_v2": mobilenet_v2.build,
    "one_conv": one_conv.build,
    "resnet18": resnet.resnet18,
    "resnet50": resnet.resnet50,
    "small_cnn": small_cnn.build,
}


def onnx_bytes(name: str) -> bytes:
    """The network's ONNX file; the same bytes every time.

    Raises:
        UserError: there is no network of that name.
    """
    if name not in MODELS:
        near = nearest(name, MODELS)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(MODELS)}"
        raise UserError(f"the zoo has no network {name!r}", hint=hint)
    data: bytes = MODELS[name]().SerializeToString(deterministic=True)
    return data
