"""The `farm` command, also as `python -m farm`: Ctrl-C ends it silently while its modules are being imported, too."""

import os
import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]  # the working folder, which `-m` puts first: a stray click.py there would be taken for click

INTERRUPTED = 130  # farm.common.errors.ExitCode, which is still to be imported


def main() -> None:
    """Run the command. An interrupt at any moment is an exit code, never a traceback."""
    try:
        import signal

        from farm.cli.main import main as run

        try:
            run()
        finally:  # an interrupt while the interpreter ends would print a traceback
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not when it is ignored
                signal.signal(signal.SIGINT, signal.SIG_DFL)
    except KeyboardInterrupt:
        os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
