"""Where the command line starts, as `cnfgnn` or `python -m cnfgnn`: quick to import, so that Ctrl-C is heard
from the first moment on."""

from __future__ import annotations

import os
import select
import signal
import sys
from contextlib import suppress
from types import FrameType

STOPPED = 130  # what shells report for Ctrl-C
NO_READER = 141  # what shells report for a process whose output nobody reads any more, as in `| head`


def main() -> None:
    """Run a command. Ctrl-C, or a reader that has gone away, ends it with an exit code and no traceback."""
    if (
        signal.getsignal(signal.SIGINT) is signal.default_int_handler
    ):  # else it is ignored: nohup, a script's &
        signal.signal(signal.SIGINT, _stop)
    signal.signal(signal.SIGTERM, _stop)  # a polite kill ends as Ctrl-C does
    try:
        from cnfgnn.cli.main import main as run_command

        try:
            run_command()
        finally:
            if sys.stdout is not None:  # as it is after >&-
                sys.stdout.flush()  # here, where it can be told why this fails
    except BaseException as end:
        causes = _causes(end)
        if any(isinstance(cause, BrokenPipeError) for cause in causes) and (unread := _unread_streams()):
            _discard_output(unread)
            sys.exit(NO_READER)
        if any(isinstance(cause, KeyboardInterrupt) for cause in causes):
            _say_stopped()
            sys.exit(STOPPED)
        raise
    finally:  # nothing is left to save: Ctrl-C while the interpreter shuts down ends it at once
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _stop(_: int, frame: FrameType | None) -> None:
    """While a command still imports what it needs there is nothing to save, and packages may be in a state in
    which they swallow the exception or answer it with one of their own: the process ends at once."""
    if _imports_for_a_command(frame):
        _say_stopped()
        os._exit(STOPPED)
    raise KeyboardInterrupt


def _imports_for_a_command(frame: FrameType | None) -> bool:
    """Whether the outermost import under way was asked for by the command line's own modules."""
    asked = ""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib") and frame.f_back is not None:
            asked = frame.f_back.f_globals.get("__name__", "")
        frame = frame.f_back
    return asked.startswith(("__main__", "cnfgnn.__main__", "cnfgnn.cli"))


def _say_stopped() -> None:
    with suppress(OSError):  # nobody reads it
        line = "\ncnfgnn: stopped\n" if os.isatty(2) else "cnfgnn: stopped\n"  # a terminal has just shown ^C
        os.write(2, line.encode())


def _causes(end: BaseException) -> list[BaseException]:
    """An exception and those that led to it, unless whoever raised it had dealt with them."""
    causes: list[BaseException] = []
    cause: BaseException | None = end
    while cause is not None and cause not in causes:
        causes.append(cause)
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return causes


def _unread_streams() -> list[int]:
    """Which of stdout and stderr nobody reads: a pipe without a reader, or /dev/null, which rich puts in its
    place. If there is none, the error came from a connection that broke, which is a failure."""
    poll, nowhere, unread = select.poll(), os.stat(os.devnull).st_rdev, []
    for stream in (1, 2):
        with suppress(OSError):  # it is closed
            unread += [stream] if os.fstat(stream).st_rdev == nowhere else []
            poll.register(stream, 0)  # errors are reported unasked
    return unread + [stream for stream, event in poll.poll(0) if event & (select.POLLERR | select.POLLHUP)]


def _discard_output(streams: list[int]) -> None:
    """Send what is still in buffers nowhere: the interpreter writes it out when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in streams:
        os.dup2(nowhere, stream)


if __name__ == "__main__":
    main()
