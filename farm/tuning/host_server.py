"""TVM's own RPC server, told its key by the environment: `python -m farm.tuning.host_server OPTION...`.

What a command line says, every user of the host reads in `ps`, and who has the key may run code here.
"""

from __future__ import annotations

import os
import runpy
import sys

KEY = "FARM_RPC_KEY"


def main() -> None:
    """Become the server; those that it starts have the key from its memory."""
    sys.argv[1:1] = ["--key", os.environ.pop(KEY)]
    runpy.run_module("tvm.exec.rpc_server", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
