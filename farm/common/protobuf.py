"""Classes of protocol buffers from the few fields of each that farm knows; the others pass through."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

__all__ = ["DecodeError", "message_classes"]
_Field = descriptor_pb2.FieldDescriptorProto
Fields = Mapping[str, tuple[int, str]]


def message_classes(package: str, **messages: Fields) -> dict[str, Any]:
    """A class for each message by its name.

    Args:
        package: a name of the caller's own.
        messages: the number and type of each field by its name: a scalar's type (`uint64`), or the name of another of
            these messages; `repeated` before it.
    """
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package)
    for message, fields in messages.items():
        declared = file.message_type.add(name=message)
        for name, (number, words) in fields.items():
            *repeated, kind = words.split()
            field = declared.field.add(name=name, number=number)
            field.label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
            if kind in messages:
                field.type, field.type_name = _Field.TYPE_MESSAGE, f".{package}.{kind}"
            else:
                field.type = _Field.Type.Value(f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {each: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{each}")) for each in messages}
