"""docs/security.md promises nothing without a test that is there."""

import ast
import re
from functools import cache
from pathlib import Path

from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "security.md").read_text()


@cache
def named_in(path):
    """Names of the tests of a file, in classes too."""
    tree = ast.parse((ROOT / path).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def promises():
    table = TEXT.partition("## What is promised")[2].partition("\n\nGarbage")[0]
    return [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| ")][1:]


def test_every_promise_names_a_test_that_is_there():
    rows = promises()
    assert len(rows) > 40
    for promise, cell in rows:
        named = re.fullmatch(r" `(tests/[\w/]+\.py)::(test_\w+)` ", cell)
        assert named, promise
        assert named[2] in named_in(named[1]), promise


def test_every_fuzz_target_is_named():
    named = TEXT.partition("Targets:")[2]
    assert re.findall(r"`([a-z-]+)`", named.partition("`make test`")[0]) == list(TARGETS)
