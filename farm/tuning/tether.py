"""Runs a program that must not outlive whoever started it: `python -I -S tether.py PROGRAM ARGUMENT...`.

Stdin is a pipe whose other end the owner holds; when it is closed, however the owner ended, the whole process group is
killed. (PDEATHSIG would fire when the owner's *thread* ends that started the program.) Start it in a group of its own.
"""

import os
import signal
import sys


def main(command: list[str]) -> None:
    """Start it, and wait for its end or the owner's."""
    pid = os.fork()
    if pid == 0:
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.execv(command[0], command)  # noqa: S606 - the owner's list of words, no shell

    def ended(*_: object) -> None:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os._exit(max(0, code))

    signal.signal(signal.SIGCHLD, ended)
    if os.waitpid(pid, os.WNOHANG)[0] == 0:  # else it ended before anybody listened
        os.read(0, 1)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1:])
