"""`python -m farm.zoo NAME OUT.onnx` writes a network of the zoo."""

from __future__ import annotations

import sys
from pathlib import Path

from farm.core.errors import UserError
from farm.zoo.catalogue import MODELS, onnx_bytes


def main(arguments: list[str]) -> int:
    """Write the network to the path given."""
    if len(arguments) != 2:
        sys.stderr.write(f"usage: python -m farm.zoo NAME OUT.onnx\nNAME: {', '.join(MODELS)}\n")
        return 2
    name, path = arguments
    try:
        data = onnx_bytes(name)
        Path(path).write_bytes(data)
    except UserError as error:
        sys.stderr.write(f"error: {error.message}\n  {error.hint}\n")
        return error.exit_code
    except OSError as error:
        sys.stderr.write(f"error: cannot write {path}: {error.strerror}\n")
        return 2
    sys.stdout.write(f"wrote {path}: {len(data)} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
