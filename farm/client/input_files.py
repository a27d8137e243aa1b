"""What is wrong with a file of inputs or labels, as far as it shows without the model: said before anything waits."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

from farm.client.files import checked_file
from farm.core.errors import UserError

WRITE_HINT = "write it with numpy.savez(path, NAME=array, ...)"


def checked_inputs(path: Path | str) -> Path:
    """`path` when it is an .npz of plain, finite arrays.

    Raises:
        UserError: it is not; the message names the file and the array.
    """
    import numpy as np

    path = checked_file(path)
    if not zipfile.is_zipfile(path):
        raise UserError(f"{path} is no .npz file", hint=WRITE_HINT)
    try:
        with np.load(path, allow_pickle=False) as arrays:
            for name in arrays.files:
                array = arrays[name]
                if np.issubdtype(array.dtype, np.inexact) and not np.isfinite(array).all():
                    raise UserError(f"{path}: the array {name!r} has NaN or infinity", hint="numbers only")
    except (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        why = "has Python objects" if "allow_pickle" in str(error) else "is damaged"
        raise UserError(f"{path} {why} and is not read", hint=WRITE_HINT, evidence=str(error)) from error
    return path


def checked_labels(path: Path | str) -> Path:
    """`path` when it is text.

    Raises:
        UserError: it is not.
    """
    path = checked_file(path)
    try:
        path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is no UTF-8 text", hint="one class name per line") from error
    return path
