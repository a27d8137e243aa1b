"""Causes as they stand in the code: one clause that fits its bound, so that nothing that farm says is cut or folded."""

import ast
import importlib
from dataclasses import fields
from pathlib import Path

import farm
from farm.common.causes import MAX_CAUSE_CHARS

ROOT = Path(farm.__file__).parent
CLASSES = (
    ("farm.measure.conditions", "Reason", "cause"),
    ("farm.model.health", "Finding", "cause"),
    ("farm.model.health", "Quarantine", "cause"),
    ("farm.model.device", "Closed", "reason"),
    ("farm.model.device", "DeviceView", "reason"),
    ("farm.head.allocator.model", "DeviceReason", "reason"),
)
FIGURE = "0"  # stands for a value in an f-string, which has one character at least


def places():
    """By class: the name and the place of the argument that is its cause."""
    found = {}
    for module, name, argument in CLASSES:
        names = [each.name for each in fields(getattr(importlib.import_module(module), name))]
        found[name] = argument, names.index(argument)
    return found


def texts(value, assigned):
    """The texts that an expression may be, as far as the code has them, each with its line."""
    match value:
        case ast.Constant(value=str(text)):
            yield value.lineno, text
        case ast.JoinedStr(values=parts):
            words = (str(each.value) if isinstance(each, ast.Constant) else FIGURE for each in parts)
            yield value.lineno, "".join(words)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            ends = [end for _, end in texts(right, assigned)] or [FIGURE]
            yield from ((line, begin + end) for line, begin in texts(left, assigned) for end in ends)
        case ast.IfExp(body=body, orelse=orelse):
            yield from (*texts(body, assigned), *texts(orelse, assigned))
        case ast.BoolOp(values=values):
            for each in values:
                yield from texts(each, assigned)
        case ast.Name(id=name):
            given = assigned.get(name, ())
            others = {known: values for known, values in assigned.items() if known != name}
            for each in given:
                yield from texts(each, others)


def assignments(nodes):
    """The values that each name is given."""
    found = {}
    for node in nodes:
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = zip(target.elts, node.value.elts, strict=True)
            for name, value in pairs:
                if isinstance(name, ast.Name):
                    found.setdefault(name.id, []).append(value)
    return found


def authored(source):
    """Each cause in a module's source, with its line."""
    tree, found = ast.parse(source), set()
    constants = assignments(tree.body)
    functions = (each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
    for scope, own in ((tree, constants), *((each, constants | assignments(ast.walk(each))) for each in functions)):
        for call in ast.walk(scope):
            if not isinstance(call, ast.Call):
                continue
            argument, place = PLACES.get(getattr(call.func, "id", getattr(call.func, "attr", "")), ("cause", None))
            given = [each.value for each in call.keywords if each.arg == argument]
            if place is not None and len(call.args) > place:
                given.append(call.args[place])
            found.update(text for each in given for text in texts(each, own))
    return found


PLACES = places()


def test_each_cause_is_one_clause_that_fits():
    sources = {path: path.read_text() for path in ROOT.rglob("*.py")}
    naming = {path: text for path, text in sources.items() if any(name in text for name in ("cause=", *PLACES))}
    found = [(path, line, text) for path, source in naming.items() for line, text in authored(source)]
    assert len(found) > 50
    for path, line, text in found:
        cause, _, carried = text.partition("; ")
        assert (len(cause) <= MAX_CAUSE_CHARS, ";" in cause) == (True, False), (path, line)
        assert carried in ("", FIGURE), (path, line)  # only another's words, which become evidence, may follow


def test_causes_are_found_however_they_are_written():
    source = """
WHY = "too hot"
def judged(hot):
    cause, evidence = f"{hot:.1f} C", "by its sensor"
    why = WHY if hot else "too cold"
    return Finding(KIND, cause), Closed(why), note(cause="a" + "b; c"), Reason("code", 1, "plain"), Other("no cause")
def another():
    cause = "unused"
"""
    assert {text for _, text in authored(source)} == {"0 C", "too hot", "too cold", "ab; c", "plain"}
