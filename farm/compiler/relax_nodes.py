"""Which nodes of TVM's JSON (`tvm.ir.save_json`) are read.

TVM makes an object of any node that a document names: `ffi.Module` is a library whose code is then in this process, and
`ir.EnvFunc` any global function of TVM's, which shape inference would call. A model is made of the nodes below.
"""

from __future__ import annotations

import json
from typing import Any

import tvm

from farm.core.errors import ModelError

_PLAIN = ("None", "bool", "int", "float", "ffi.Array", "ffi.Map", "ffi.String", "ffi.Shape", "ffi.Tensor", "DataType")
_IR = (
    "Call", "DictAttrs", "FloatImm", "FuncType", "GenericConst", "GlobalVar", "IRModule", "IntImm", "Op", "PointerType",
    "PrimType", "Range", "SequentialSpan", "SourceMap", "SourceName", "Span", "StringImm", "StringType", "TensorLoad",
    "TensorRegion", "Tuple", "TupleGetItem", "TupleType", "Var",
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
    "AllocBuffer", "AssertStmt", "AttrStmt", "Bind", "Break", "BufferRegionType", "BufferStore", "BufferType",
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


def load_nodes(text: str, name: str) -> Any:
    """The object that a document of TVM's JSON holds; `name` is for messages.

    Raises:
        ModelError: it is no such document, has a node that no model has, or TVM cannot read it.
    """
    try:
        document = json.loads(text)
        for node in document["nodes"]:
            _check(node, name)
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise ModelError(f"{name} is damaged: its nodes cannot be read", evidence=str(error)[-2000:]) from error
    try:
        return tvm.ir.load_json(text)
    except Exception as error:
        raise ModelError(f"{name} is damaged: TVM cannot read its module", evidence=str(error)[-2000:]) from error


def _check(node: dict[str, Any], name: str) -> None:
    kind = node["type"]
    if kind in ALLOWED or (isinstance(kind, str) and kind.startswith(_ATTRIBUTES)):
        return
    if kind == _FUNCTION and node.get("data") in _FUNCTIONS:
        return
    raise ModelError(
        f"{name} holds a node of type {str(kind)[:80]!r}, which no model needs, and is not read",
        hint="save the module as it was imported: no compiled code, no targets, no functions of a host",
    )
