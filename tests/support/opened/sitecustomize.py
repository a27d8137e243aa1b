"""On the path of a farm under test: whatever it opens below $CHECKOUT, but for its environment, is written down."""

import os
import sys
from pathlib import Path

if "CHECKOUT" in os.environ:
    _checkout, _opened = os.environ["CHECKOUT"] + os.sep, os.environ["OPENED"]
    _own = (sys.prefix + os.sep, sys.base_prefix + os.sep)

    def _hear(event, given):
        if event == "open" and isinstance(given[0], str):
            path = str(Path(given[0]).absolute())
            if path.startswith(_checkout) and not path.startswith(_own):
                descriptor = os.open(_opened, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
                os.write(descriptor, f"{path}\n".encode())
                os.close(descriptor)

    sys.addaudithook(_hear)
