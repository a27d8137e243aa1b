"""With this folder in PYTHONPATH, some candidates that a farm builds for tuning are bad: they crash, or never end.

Which ones follows from the seed and the library itself, so a bad candidate is bad on every phone and at every try. This
file is copied into a folder with `seed`, `crash.so` and `endless.so`; `made` there notes each bad one: sha256 kind.
"""

import functools
import hashlib
import importlib.abc
import importlib.machinery
import sys
from pathlib import Path

BUILDS = "farm.tuning.build_server"  # imported by whoever forks a build server
ONE_IN = 10  # crashes, and as many never end


def spoiled(export, folder):
    """A linker's function that puts a bad library in the place of some."""
    seed = (folder / "seed").read_bytes()

    @functools.wraps(export)
    def linked(output, *arguments, **options):
        export(output, *arguments, **options)
        built = Path(output)
        digest = hashlib.sha256(seed + built.read_bytes()).digest()
        kind = {0: "crash", 1: "endless"}.get(digest[0] % ONE_IN)
        if kind is not None:
            library = (folder / f"{kind}.so").read_bytes() + digest  # what follows an ELF file does no harm
            built.write_bytes(library)
            with (folder / "made").open("a") as made:
                made.write(f"{hashlib.sha256(library).hexdigest()} {kind}\n")

    return linked


class Loader(importlib.machinery.SourceFileLoader):
    def exec_module(self, module):
        super().exec_module(module)
        make = module._exporter
        module._exporter = lambda *of, **more: spoiled(make(*of, **more), Path(__file__).parent)


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != BUILDS:
            return None
        found = importlib.machinery.PathFinder.find_spec(name, path)
        found.loader = Loader(name, found.origin)
        return found


sys.meta_path.insert(0, Finder())
