"""A disk that is really full: a tmpfs of a few hundred KiB in a mount namespace of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.bundle.elves import ANDROID_BUNDLE, write_folder

ROOT = Path(__file__).parents[3]
IN_NAMESPACE = ("unshare", "--mount", "--map-root-user", "--", "sh", "-ec")
TMPFS = 'mount -t tmpfs -o size="$1" none "$2"; shift 2; exec "$@"'

# Adds on the small disk, says what happened, then makes room and adds again.
CHILD = """
import json, sys
from dataclasses import replace
from pathlib import Path
from farm.bundle.library import BundleLibrary
from farm.core.errors import HostError
from tests.unit.bundle.test_library import golden

disk, folder, part = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
library = BundleLibrary(disk / "bundles")

def greedy(wanted, out):
    golden(wanted, out)
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


def mountable() -> bool:
    if shutil.which("unshare") is None:
        return False
    command = [*IN_NAMESPACE, "mount -t tmpfs -o size=64k none /mnt"]
    return subprocess.run(command, capture_output=True, timeout=20, check=False).returncode == 0


@pytest.mark.parametrize("part", ["files", "golden"])
def test_is_said_and_leaves_nothing_and_works_again_with_room(tmp_path: Path, part: str) -> None:
    if not mountable():
        pytest.skip("this host lets us mount no tmpfs (unshare --mount --map-root-user)")
    folder = write_folder(tmp_path / "folder", ANDROID_BUNDLE)
    if part == "files":
        (folder / "large.bin").write_bytes(bytes(10_000_000))
    disk = tmp_path / "disk"
    disk.mkdir()
    done = subprocess.run(
        [*IN_NAMESPACE, TMPFS, "sh", "600k", str(disk), sys.executable, "-c", CHILD, str(disk), str(folder), part],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    message, hint = result["said"]
    assert message == "adding bundle main failed: No space left on device"
    assert "free some room" in hint
    assert result["left"] == ["bundles/lock"]
    assert (result["again"], result["damages"]) == ("main", 0)
