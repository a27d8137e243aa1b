"""With this folder in PYTHONPATH, some candidates that a farm builds for tuning are bad: they crash, or never end.

Which ones follows from the seed and the library itself, so a bad candidate is bad on every phone and at every try. This
file is copied into a folder with `seed`, `crash.so` and `endless.so`; `made` there notes each bad one: sha256 kind.
"""

import functools
import hashlib
import sys
from pathlib import Path

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


if "farm.tuning.build_server" in sys.orig_argv:
    from farm.compiler import link

    make = link.exporter
    link.exporter = lambda *of: spoiled(make(*of), Path(__file__).parent)
