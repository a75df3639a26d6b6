"""The `securevfl` command, and `python -m securevfl`.

An interrupt ends it without a traceback: at once during imports and exit, in order while it works.
"""

import signal
import sys

from securevfl.interrupts import leave


def main() -> None:
    """Run the command line."""
    signal.signal(signal.SIGINT, leave)
    from securevfl.cli.app import main as run  # noqa: PLC0415  # under the handler

    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run()
    except BaseException as error:
        if _follows_an_interrupt(error):
            leave()
        raise
    finally:
        # An interrupt within any `exec` would have `python -m` die of the signal, whatever the
        # status; the next `exec` undoes that.
        exec("")  # noqa: S102
        sys.stdout.flush()
        signal.signal(signal.SIGINT, leave)


def _follows_an_interrupt(error: BaseException | None) -> bool:
    """Whether an error is an interrupt, or was caused by one during a library's import."""
    while error is not None and not isinstance(error, SystemExit):
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False


if __name__ == "__main__":
    main()
