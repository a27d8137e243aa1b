"""`python -m benchmarks [NAME ...]`."""

import sys

from benchmarks.harness import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
