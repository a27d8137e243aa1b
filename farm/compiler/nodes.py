"""Which nodes of TVM's JSON (`tvm.ir.save_json`) are read. Only `load_nodes` imports TVM.

TVM makes an object of any node that a document names: `ffi.Module` is a library whose code is then in this process, and
`ir.EnvFunc` any global function of TVM's, which shape inference would call. Models, and the operators and layouts in
tuning records, are made of the nodes below.
"""

from __future__ import annotations

import json
from typing import Any

from farm.common.errors import ModelError
from farm.compiler.tvm_errors import end_of

_PLAIN = ("None", "bool", "int", "float", "ffi.Array", "ffi.Map", "ffi.String", "ffi.Shape", "ffi.Tensor", "DataType")
_IR = (
    "Call", "DictAttrs", "FloatImm", "FuncType", "GenericConst", "GlobalVar", "IRModule", "IntImm", "Op", "PointerType",
    "PrimType", "Range", "SequentialSpan", "SourceMap", "SourceName", "Span", "StringImm", "StringType", "TensorLoad",
    "TensorRegion", "Tuple", "TupleGetItem", "TupleType", "Type", "Var",
)  # fmt: skip
_PRIM = (
    "Add", "And", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Broadcast", "Cast", "Div", "EQ", "FloorDiv",
    "FloorMod", "GE", "GT", "LE", "LShift", "LT", "Let", "Max", "Min", "Mod", "Mul", "NE", "Not", "Or", "RShift",
    "Ramp", "Select", "Shuffle", "Sub",
)  # fmt: skip
_RELAX = (
    "AnyType", "DummyGlobalInfo", "FuncType", "PackedFuncType", "ShapeType", "TensorType", "expr.BindingBlock",
    "expr.DataflowBlock", "expr.DataflowVar", "expr.ExternFunc", "expr.Function", "expr.If", "expr.MatchCast",
    "expr.SeqExpr", "expr.ShapeExpr", "expr.VarBinding",
)  # fmt: skip
_TIR = (
    "AllocBuffer", "AssertStmt", "AttrStmt", "Axis", "Bind", "Break", "BufferRegionType", "BufferStore", "BufferType",
    "Continue", "DeclBuffer", "Evaluate", "For", "IfThenElse", "IndexMap", "Iter", "IterVar", "PrimFunc", "Return",
    "SeqStmt", "TileLayout", "While",
)  # fmt: skip
_S_TIR = ("MatchBufferRegion", "SBlock", "SBlockRealize", "SLayout")
_TE = ("CommReducer", "Reduce")
ALLOWED = frozenset(_PLAIN).union(
    *(
        {f"{floor}.{kind}" for kind in kinds}
        for floor, kinds in (
            ("ir", _IR), ("prim", _PRIM), ("relax", _RELAX), ("tirx", _TIR), ("s_tir", _S_TIR), ("te", _TE)
        )
    )
)  # fmt: skip
_ATTRIBUTES = "relax.attrs."  # of operators: plain fields, one type per operator
_FUNCTION = "ir.EnvFunc"
_FUNCTIONS = frozenset({"tvm.relax.type.infer_by_ty_args"})  # what every `call_packed` has for its type


class ForeignNodeError(ValueError):
    """A document has a node that is not read."""


def check_nodes(text: str) -> None:
    """Look at each node of a document.

    Raises:
        ForeignNodeError: it has a node of another kind.
        ValueError: it is no document of TVM's.
    """
    try:
        for node in json.loads(text, object_pairs_hook=_reject_duplicate_keys)["nodes"]:
            kind = node["type"]
            known = kind in ALLOWED or (isinstance(kind, str) and kind.startswith(_ATTRIBUTES))
            if not known and not (kind == _FUNCTION and node.get("data") in _FUNCTIONS):
                raise ForeignNodeError(f"it holds a node of type {str(kind)[:80]!r}")
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(str(error)) from error


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A mapping; with a key twice, TVM may take the one that was not looked at."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found


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
    import tvm

    try:
        return tvm.ir.load_json(text)
    except Exception as error:
        raise ModelError(f"{name} is damaged: TVM cannot read its module", evidence=end_of(error)) from error
