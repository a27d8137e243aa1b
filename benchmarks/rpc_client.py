"""A stock TVM client in a process of its own, told what to do line by line: it may hang, and it may be killed.

`python -m benchmarks.rpc_client HOST PORT GOLDEN` reads one JSON command per line and answers each with one line:
    {"do": "open", "key": K, "timeout_s": T}  request a phone from the tracker (T 0: no session_timeout)
    {"do": "run"}                             run the golden kernels on it; says {"begun"} before
    {"do": "close"}                           end the session
An answer is {"ok": true} or {"ok": false, "error": "..."}. Ends when stdin is closed.
"""

from __future__ import annotations

import json
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from farm.common.errors import HostError

GRACE_S = 10.0
ANSWER_LIMIT_S = 180.0  # longer than any phone of ours stays away


class ClientHangsError(HostError):
    """A stock client does not come back from a call."""

    code = "client_hangs"


class RpcClient:
    """Such a process. Kill it, or leave the context."""

    def __init__(self, tracker: tuple[str, int], golden: Path) -> None:
        host, port = tracker
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.rpc_client", host, str(port), str(golden)],
            cwd=Path(__file__).parents[1],
            bufsize=0,  # select() must see every line that has come
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # TVM prints stack traces of sessions that were cut
        )
        self.answer()  # TVM is imported

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def tell(self, do: str, **fields: Any) -> None:
        """Give an order.

        Raises:
            HostError: the process has ended.
        """
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"do": do, **fields}).encode() + b"\n")
        except BrokenPipeError as error:
            raise HostError("a stock client has ended") from error

    def answer(self) -> dict[str, Any]:
        """Wait for the next line.

        Raises:
            ClientHangsError: it does not come.
            HostError: the process has ended.
        """
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], ANSWER_LIMIT_S)[0]:
            raise ClientHangsError(f"a stock client said nothing for {ANSWER_LIMIT_S:g} s")
        line = self.process.stdout.readline()
        if not line:
            raise HostError(f"a stock client ended with {self.process.wait(GRACE_S)}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, do: str, **fields: Any) -> dict[str, Any]:
        """Give an order and wait for its answer, past what announces it."""
        self.tell(do, **fields)
        while "ok" not in (answer := self.answer()):
            continue
        return answer

    def must(self, do: str, **fields: Any) -> None:
        """`ask`, and have it work.

        Raises:
            HostError: it did not.
        """
        answer = self.ask(do, **fields)
        if not answer["ok"]:
            raise HostError(f"a stock client could not {do}: {answer['error']}")

    def kill(self) -> None:
        """SIGKILL: no goodbye is said to anybody."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(GRACE_S)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


def main(host: str, port: str, golden: str) -> None:
    """The process."""
    from tvm import rpc

    from farm.worker.golden import run_golden

    tracker = session = None
    _say(ok=True)
    for line in sys.stdin:
        order = json.loads(line)
        try:
            if order["do"] == "open":
                tracker = tracker or rpc.connect_tracker(host, int(port))
                session = tracker.request(order["key"], session_timeout=order.get("timeout_s", 0))
            elif order["do"] == "run":
                _say(begun=True)
                found = run_golden(session, Path(golden))
                assert found.ok, found.detail
            else:
                assert session is not None, "nothing to close"
                session._sess.get_function("CloseRPCConnection")()  # noqa: SLF001 - the one way to end it at once
                session = None
        except Exception as error:  # noqa: BLE001 - whatever TVM raises is the answer
            _say(ok=False, error=f"{type(error).__name__}: {error}"[:500])
        else:
            _say(ok=True)


def _say(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
