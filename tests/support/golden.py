"""What parsers read from captures, as JSON beside the captures' folder; REWRITE=1 writes it again for review."""

import json
from dataclasses import asdict, is_dataclass
from pathlib import Path

import pytest

from tests.support.snapshots import REWRITES


def golden(folder, read, pattern="*.txt", captures=None):
    """For a parametrized test: each capture (a file), and what `read(capture)` gave when its JSON was reviewed."""
    captures = captures or {file.stem: file for file in sorted(folder.glob(pattern))}
    path = folder.with_suffix(".json")
    if REWRITES:
        found = {name: as_json(read(file)) for name, file in captures.items()}
        path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    reviewed = json.loads(path.read_text())
    assert reviewed.keys() == captures.keys(), f"{path} is of other captures: REWRITE=1 makes it again"
    return [pytest.param(captures[name], wanted, id=name) for name, wanted in reviewed.items()]


def rows(test_file, name):
    """For a parametrized test: the cases of a parser that stand in `<name>.json` beside the test, a row each."""
    return json.loads(Path(test_file).with_name(f"{name}.json").read_text("utf-8"))


def as_json(value):
    """A record as JSON knows it."""
    return json.loads(json.dumps(value, default=lambda each: asdict(each) if is_dataclass(each) else list(each)))
