"""Files that people name, refused at once when they cannot be read or written; durable files; hashes."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EACCES, EISDIR
from pathlib import Path

from farm.common.errors import UserError

log = logging.getLogger(__name__)
SHA256_FORM = r"^[0-9a-f]{64}$"
_SIZE_UNITS = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))
SHORT_HASH = 12  # digits shown to people; 48 bits: a farm with a thousand bundles has a collision once in 10^9 farms
SAVED_MODEL_HINT = (
    "convert the SavedModel: python -m tf2onnx.convert --saved-model FOLDER --output net.onnx, or the TensorFlow Lite "
    "converter"
)


def checked_file(path: Path | str) -> Path:
    """`path` when it is a file that can be read.

    Raises:
        UserError: it is not.
    """
    path = Path(path)
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "is no file" if path.exists() else "does not exist"
        saved_model = (path / "saved_model.pb").is_file()
        raise UserError(f"{path} {what}", hint=SAVED_MODEL_HINT if saved_model else "give the path of a file")
    if not os.access(path, os.R_OK):
        raise UserError(f"cannot read {path}: permission denied", hint="give the path of a file you may read")
    return path


def check_writable(path: Path) -> None:
    """Refuse a file that could not be written at the end of the work, before it begins; leaves nothing behind.

    Raises:
        UserError: it could not.
    """
    try:
        if path.is_dir():
            raise IsADirectoryError(EISDIR, os.strerror(EISDIR))
        if not path.exists():
            path.open("xb").close()
            path.unlink()
        elif not os.access(path, os.W_OK):
            raise PermissionError(EACCES, os.strerror(EACCES))
    except OSError as error:
        missing = isinstance(error, FileNotFoundError | NotADirectoryError)
        hint = "make it first" if missing else "name a file in a folder that is there and yours"
        why = f"there is no folder {path.parent}" if missing else error.strerror
        raise UserError(f"cannot write {path}: {why}", hint=hint) from error


def sync(path: Path) -> None:
    """Make a file's bytes, or the names in a directory, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(root: Path) -> None:
    """Flush every file and directory below `root`."""
    for directory, _, files in os.walk(root):
        for name in files:
            sync(Path(directory) / name)
        sync(Path(directory))


def publish(part: Path, final: Path) -> None:
    """Give a finished file or folder its name: after a power cut it is there whole, or not at all.

    Blocks until the disk has it: 5-50 ms, seconds on a busy one.
    """
    sync_tree(part) if part.is_dir() else sync(part)
    part.replace(final)
    sync(final.parent)


@contextmanager
def written(path: Path, content: bytes, mode: int = 0o666) -> Iterator[None]:
    """Write `content` beside `path` for good, and rename it to `path` after the block, which a full disk never runs.

    Readers see the old file or the new one, never a part; an error leaves the old one.
    """
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        part.touch(mode, exist_ok=False)
        part.write_bytes(content)
        sync(part)
        yield
        part.replace(path)
        sync(path.parent)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_durably(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Replace a file by one with `content`, at once and for good. Raises OSError, and the old one is as it was."""
    with written(path, content, mode):
        pass


def remove_leftover(path: Path) -> None:
    """Delete a file, link or folder that a dead process left; if it stays, the log has one line with the reason."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    except FileNotFoundError:
        return  # another process was faster
    except OSError as error:
        shutil.rmtree(path, ignore_errors=True)  # the rest of a folder
        log.warning("%s is of no use and stays: %s; remove it by hand", path, error.strerror or error)


def hash_file(path: Path, algorithm: str = "sha256") -> str:
    """The hash of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def is_sha256(value: object) -> bool:
    """Whether it is a SHA-256 in lower-case hex."""
    return isinstance(value, str) and re.fullmatch(SHA256_FORM, value) is not None


def size_words(count: float) -> str:
    """A number of bytes, for people: 10 bytes, 1.2 kB, 5.0 MB."""
    unit, divisor = next((each for each in _SIZE_UNITS if count >= each[1]), ("bytes", 1.0))
    return f"{count / divisor:.0f} bytes" if divisor == 1.0 else f"{count / divisor:.1f} {unit}"


def short_hash(digest: str) -> str:
    """The beginning of a hash in hex, for people."""
    return digest[:SHORT_HASH]
