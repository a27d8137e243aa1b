import subprocess
import sys


def test_the_hot_paths_do_not_import_adbutils():
    modules = "client, push, watch, server, tunnels, tools"
    heavy = "('adbutils', 'PIL', 'tvm')"
    script = f"import sys; from farm.adb import {modules}; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
