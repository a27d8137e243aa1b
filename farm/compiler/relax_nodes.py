"""TVM's JSON (`tvm.ir.save_json`) of models."""

from __future__ import annotations

from typing import Any

import tvm

from farm.compiler.nodes import ForeignNodeError, check_nodes
from farm.compiler.tvm_errors import end_of
from farm.core.errors import ModelError


def load_nodes(text: str, name: str) -> Any:
    """The object that a document of TVM's JSON holds; `name` is for messages.

    Raises:
        ModelError: it is no such document, has a node that no model has, or TVM cannot read it.
    """
    try:
        check_nodes(text)
    except ForeignNodeError as error:
        raise ModelError(
            f"{name}: {error}, which no model needs, and is not read",
            hint="save the module as it was imported: no compiled code, no targets, no functions of a host",
        ) from error
    except ValueError as error:
        raise ModelError(f"{name} is damaged: its nodes cannot be read", evidence=end_of(error)) from error
    try:
        return tvm.ir.load_json(text)
    except Exception as error:
        raise ModelError(f"{name} is damaged: TVM cannot read its module", evidence=end_of(error)) from error
