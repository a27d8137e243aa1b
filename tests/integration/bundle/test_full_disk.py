"""A bundle is added to, and a runtime downloaded to, a disk that is really full."""

import pytest

from tests.support.small_disk import on_small_disk
from tests.unit.bundle.elves import ANDROID_BUNDLE, write_folder

# Adds on the small disk, says what happened, then makes room and adds again.
CHILD = """
import json, sys
from dataclasses import replace
from pathlib import Path
from farm.bundle.library import BundleLibrary
from farm.common.errors import HostError
from tests.unit.bundle.test_library import golden

disk, folder, part = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
library = BundleLibrary(disk / "bundles")

def greedy(abi, platform, kinds, out):
    golden(abi, platform, kinds, out)
    (out / "large.npz").write_bytes(bytes(10_000_000))

try:
    library.add(folder, name="main", compile_golden=greedy if part == "golden" else golden)
    said = None
except HostError as error:
    said = [error.message, error.hint]
left = sorted(str(path.relative_to(disk)) for path in disk.rglob("*") if path.is_file())
(folder / "large.bin").unlink(missing_ok=True)
again = library.add(folder, name="main", compile_golden=golden)
print(json.dumps({"said": said, "left": left, "damages": len(library.verify()), "again": again.name}))
"""


@pytest.mark.parametrize("part", ["files", "golden"])
def test_is_reported_and_leaves_nothing_and_works_again_with_space(tmp_path, part):
    folder = write_folder(tmp_path / "folder", ANDROID_BUNDLE)
    if part == "files":
        (folder / "large.bin").write_bytes(bytes(10_000_000))
    result = on_small_disk("600k", tmp_path / "disk", CHILD, folder, part)
    message, hint = result["said"]
    assert message == "adding bundle main failed: No space left on device"
    assert "free some room" in hint
    assert result["left"] == ["bundles/lock"]
    assert (result["again"], result["damages"]) == ("main", 0)


# Makes a part with a program that fills the small disk, and then one that fits.
MAKE = """
import json, sys
from pathlib import Path
from farm.common.errors import HostError
from farm.runtime.parts import output_of, part

disk = Path(sys.argv[1])

def fill(made, scratch):
    output_of(["sh", "-c", "head -c 10000000 /dev/zero > download"], 60.0, HostError, scratch)

try:
    part(disk / "cache", "wheel", fill)
    said = None
except HostError as error:
    said = [error.message, error.hint]
left = sorted(path.name for path in (disk / "cache").iterdir())
part(disk / "cache", "wheel", lambda made, scratch: {} if (made / "library").write_text("fits") else {})
print(json.dumps({"said": said, "left": left}))
"""


def test_a_download_that_fills_it_is_one_line_and_leaves_nothing(tmp_path):
    result = on_small_disk("600k", tmp_path / "disk", MAKE)
    message, hint = result["said"]
    assert message == "making wheel failed: No space left on device"
    assert "free some room" in hint
    assert result["left"] == ["lock"]
