"""AArch64 code and machines for tests: what is made here for an arm64 phone, and a Linux board that is no Android."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager

from tests.support.tvm import environment, free_port, wait_for_port

LIMIT_S = 60.0

COMPILE = """\
import subprocess, sys, tvm
from tvm import te

def link(output, objects, options=None):
    subprocess.run(["ld.lld", "-m", "aarch64linux", "-shared", "-o", output, *objects], check=True)

link.output_format = "so"
a = te.placeholder((1024,), name="a")
b = te.compute((1024,), lambda i: a[i] + 1.0, name="b")
function = te.create_prim_func([a, b]).with_attr("global_symbol", "add_one")
target = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": ["+neon"]}
tvm.compile(function, target=target).export_library(sys.argv[1], fcompile=link)
"""
DOT_PRODUCT = 'int main(void) { __asm__ volatile(".arch armv8.2-a+dotprod\\n sdot v0.4s, v1.16b, v2.16b"); }\n'


def compile_arm64_kernel(folder):
    """`add_one` of tests.support.stock_client, cross-compiled by stock TVM, which is told of a linker the host has."""
    library = folder / "add_one.so"
    subprocess.run([sys.executable, "-c", COMPILE, library], check=True, env=environment(), timeout=LIMIT_S)
    return library


def compile_dot_product(folder):
    """A program with one instruction that ARMv8.0 does not have."""
    source, program = folder / "dot.c", folder / "dot"
    source.write_text(DOT_PRODUCT)
    command = ["aarch64-linux-gnu-g++", "-x", "c", source, "-o", program]
    subprocess.run(command, check=True, timeout=LIMIT_S)
    return program


@contextmanager
def board(programs, tracker, key, work_dir):
    """A Linux board whose owner started an RPC server on it that registers itself at a tracker.

    `programs` is the folder of `farm.simulation.arm64`.
    """
    port = free_port()
    server = [programs / "qemu-aarch64", programs / "bundle/tvm_rpc", "server"]
    options = [f"--port={port}", f"--port-end={port + 1}", f"--key={key}", f"--work-dir={work_dir}", "--silent"]
    child = subprocess.Popen(
        [*server, "--host=127.0.0.1", f"--tracker=127.0.0.1:{tracker}", *options],
        env={**os.environ, "QEMU_LD_PREFIX": str(programs / "root"), "QEMU_CPU": "cortex-a72"},
        start_new_session=True,
    )
    try:
        wait_for_port(port)
        yield
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait(LIMIT_S)
