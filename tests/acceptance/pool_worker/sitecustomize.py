"""With this folder in PYTHONPATH, `farm.kinds.tune.worker` is the test's worker in every process of a farm."""

import importlib.abc
import importlib.util
import sys
from pathlib import Path

WORKER = Path(__file__).with_name("told_what_to_do.py")


class Double(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "farm.kinds.tune.worker":
            return importlib.util.spec_from_file_location(name, WORKER)
        return None


sys.meta_path.insert(0, Double())
