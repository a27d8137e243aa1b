"""What tuning records have TVM load: modules and layouts, in its JSON. Only such of known nodes are read. No TVM."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any

from farm.compiler.nodes import check_nodes
from farm.compiler.records import RECORDS, WORKLOADS, Damage, Reading

_LENGTH_BYTES = 8  # before the document, little-endian
_ALSO = frozenset({"ir.Type"})


def checked(found: Reading) -> Reading:
    """A reading without what stock TVM cannot load or nobody should: it is damage.

    A module may still be another one than its hash says; only TVM can tell.
    """
    damage: list[Damage] = []
    workloads = {}
    for number, workload in enumerate(found.set.workloads.values(), 1):
        try:
            check_nodes(_document(workload.module), also=_ALSO)
            workloads[workload.hash] = workload
        except ValueError as error:
            damage.append(Damage(WORKLOADS, number, f"its module is not read: {error}", workload.line()))
    records = []
    for number, record in enumerate(found.set.records, 1):
        try:
            if record.workload not in workloads:
                raise ValueError(f"its workload {record.workload} is not read")
            _check_trace(record.trace)
            records.append(record)
        except ValueError as error:
            damage.append(Damage(RECORDS, number, str(error), json.dumps(record.trace)))
    if not damage:
        return found
    rest = replace(found.set, workloads=workloads).with_records(tuple(records))
    return Reading(rest, (*found.damage, *damage), found.whole, found.torn)


def _document(module: str) -> str:
    data = base64.b64decode(module, validate=True)
    text = data[_LENGTH_BYTES:]
    if base64.b64encode(data).decode() != module or int.from_bytes(data[:_LENGTH_BYTES], "little") != len(text):
        raise ValueError("it is no module of TVM's")
    return text.decode()


def _check_trace(trace: Any) -> None:
    """Instructions that change layouts have them as documents."""
    left = [trace]
    while left:
        value = left.pop()
        if isinstance(value, list):
            left += value
        elif isinstance(value, dict):
            left += [*value, *value.values()]
        elif isinstance(value, str) and value.lstrip(' \t\r\n"').startswith("{"):
            try:
                check_nodes(value, also=_ALSO)
            except ValueError as error:
                raise ValueError(f"its trace is not read: {error}") from error
