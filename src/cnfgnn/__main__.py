"""The entry point of the command line, as `cnfgnn` or `python -m cnfgnn`.

It imports little, so that Ctrl-C is handled from the first moment on.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from contextlib import suppress
from types import FrameType

STOPPED = 130  # the exit code that shells report after Ctrl-C
NO_READER = 141  # the exit code after writing to a closed pipe, as in `| head`


def main() -> None:
    """Run a command; Ctrl-C and a closed output pipe end it with an exit code instead of a traceback."""
    # Under nohup, or after & in a script, SIGINT is ignored and stays ignored.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _stop)
    signal.signal(signal.SIGTERM, _stop)
    try:
        from cnfgnn.cli.main import main as run_command

        try:
            run_command()
        finally:
            if sys.stdout is not None:  # it is None after >&-
                sys.stdout.flush()  # now, because an error at interpreter exit could not be handled
    except BaseException as end:
        causes = _causes(end)
        if any(isinstance(cause, BrokenPipeError) for cause in causes) and (unread := _unread_streams()):
            _discard_output(unread)
            sys.exit(NO_READER)
        if any(isinstance(cause, KeyboardInterrupt) for cause in causes):
            _say_stopped()
            sys.exit(STOPPED)
        raise
    finally:  # nothing is left to save, so Ctrl-C may end the interpreter while it shuts down
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _stop(_: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt on Ctrl-C or SIGTERM, but end at once while a command imports its packages.

    During imports there is nothing to save, and a package may swallow the exception or replace it.
    """
    if _imports_for_a_command(frame):
        _say_stopped()
        os._exit(STOPPED)
    raise KeyboardInterrupt


def _imports_for_a_command(frame: FrameType | None) -> bool:
    """Whether the outermost import in progress was started by the command line's own modules."""
    asked = ""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib") and frame.f_back is not None:
            asked = frame.f_back.f_globals.get("__name__", "")
        frame = frame.f_back
    return asked.startswith(("__main__", "cnfgnn.__main__", "cnfgnn.cli"))


def _say_stopped() -> None:
    with suppress(OSError):  # stderr may be closed
        line = "\ncnfgnn: stopped\n" if os.isatty(2) else "cnfgnn: stopped\n"  # after the ^C of a terminal
        os.write(2, line.encode())


def _causes(end: BaseException) -> list[BaseException]:
    """An exception and its causes, except those that were suppressed with `raise ... from None`."""
    causes: list[BaseException] = []
    cause: BaseException | None = end
    while cause is not None and cause not in causes:
        causes.append(cause)
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return causes


def _unread_streams() -> list[int]:
    """Which of stdout and stderr nobody reads: a pipe without a reader, or /dev/null, where rich sends it.

    If there is none, a BrokenPipeError came from a network connection and is a failure.
    """
    poll = select.poll()
    null_device = os.stat(os.devnull).st_rdev
    unread = []
    for stream in (1, 2):
        with suppress(OSError):  # the stream is closed
            if os.fstat(stream).st_rdev == null_device:
                unread.append(stream)
            poll.register(stream, 0)  # poll reports errors even if no event is requested
    for stream, event in poll.poll(0):
        if event & (select.POLLERR | select.POLLHUP):
            unread.append(stream)
    return unread


def _discard_output(streams: list[int]) -> None:
    """Redirect streams to /dev/null, because the interpreter writes what is left in buffers when it exits."""
    null_device = os.open(os.devnull, os.O_WRONLY)
    for stream in streams:
        os.dup2(null_device, stream)


if __name__ == "__main__":
    main()
