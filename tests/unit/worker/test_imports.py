"""What a zygote imports, each of its children has: no store, no leasing."""

import subprocess
import sys


def test_workers_import_neither_the_store_nor_leasing():
    script = (
        "import sys; import farm.worker.zygote;"
        " print(sorted(name for name in sys.modules if name == 'sqlalchemy' or name.startswith('farm.leasing')))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
