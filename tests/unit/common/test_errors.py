"""Codes of errors: each is raised with the fault that the table gives it, and crosses the wire."""

import ast
import itertools
import json
from pathlib import Path

import pytest

import farm.compiler.package
from farm.common.errors import Code, ExitCode, FarmError, Fault, PhoneError, UserError, error_from_wire, error_to_wire

# Of the user's request, or of the host that cannot do it.
TWO_FAULTS = {Code.COMPILE_FAILED, Code.DATABASE_UNUSABLE, Code.NO_SUCH_KIND, Code.STATE_FOLDER_IN_USE}


def code_of(node):
    named = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Code"
    return Code[node.attr] if named else None


def sources():
    """Everything in the modules that name a code."""
    for path in Path(next(iter(farm.__path__))).rglob("*.py"):
        if "Code." in (text := path.read_text("utf-8")):
            yield from ast.walk(ast.parse(text))


def raised(node):
    """The class and the code of a call that makes an error, or of a `partial` of one."""
    if isinstance(node, ast.Call):
        given = [*node.args, *(each.value for each in node.keywords)]
        codes = [code for code in map(code_of, given) if code]
        names = [each.id for each in (node.func, *given) if isinstance(each, ast.Name)]
        yield from itertools.product(names, codes)


def family(cls):
    yield cls
    for child in cls.__subclasses__():
        yield from family(child)


@pytest.mark.parametrize("code", [0, -1, 999, True, "3"])
def test_no_peer_makes_an_error_end_well(code):
    assert error_from_wire({**error_to_wire(UserError("no")), "exit": code}).exit_code == UserError.exit_code


def test_every_code_is_raised_by_a_class_of_its_fault():
    faults = {cls.__name__: cls.fault for cls in family(FarmError)}
    nodes = list(sources())
    assert {code for code in map(code_of, nodes) if code} == set(Code)
    found = {(code, faults[name]) for node in nodes for name, code in raised(node) if name in faults}
    assert {code for code, fault in found if fault is not code.fault} == TWO_FAULTS


def test_an_error_has_the_exit_code_and_meaning_of_its_code():
    for code, exit_code in ((Code.QUOTA_EXCEEDED, 5), (Code.BAD_SHAPE, ExitCode.USAGE)):
        assert UserError("m", code).exit_code == exit_code
    assert UserError(code=Code.NO_DATABASE).message == Code.NO_DATABASE.meaning


@pytest.mark.parametrize("code", [Code.QUOTA_EXCEEDED, Code.TOO_HOT])
def test_a_code_and_its_exit_code_cross_the_wire(code):
    error = (PhoneError if code.fault is Fault.PHONE else UserError)("m", code)
    back = error_from_wire(json.loads(json.dumps(error_to_wire(error))))
    assert (type(back), back.code, back.exit_code) == (type(error), code, error.exit_code)


def test_codes_of_classes_are_not_declared_twice():
    own = [cls for cls in family(FarmError) if "code" in vars(cls) and cls.__module__.startswith("farm.")]
    assert [cls.__name__ for cls in own if not isinstance(cls.code, Code) and cls.code in set(Code)] == []


def test_a_code_of_another_process_is_short():
    """A worker's error is in every list of jobs: a code of a megabyte kept the list from all users."""
    back = error_from_wire({**error_to_wire(UserError("no")), "code": "x" * 100_000})
    assert (back.code, len(json.dumps(error_to_wire(back))) < 20_000) == (FarmError.code, True)
