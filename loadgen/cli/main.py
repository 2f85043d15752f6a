"""The console script: errors become one line and an exit code (exits.ExitCode has the table and the precedence).

Who reads what we print, or stops reading, changes no code.  Nothing heavy is imported before the first `try`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import traceback

from loadgen import interrupts
from loadgen.cli.output import outlive_readers
from loadgen.exits import ExitCode

TRACE = "LOADGEN_TRACE"
_OF_THE_MACHINE = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EIO,
    errno.EROFS,
    errno.EMFILE,
    errno.ENFILE,
)


def main() -> None:
    """Runs the command line and exits."""
    interrupts.install()
    _open_standard_streams()
    os.environ.setdefault(
        "GRPC_ENABLE_FORK_SUPPORT", "0"
    )  # we only start programs; it talks on stderr about that
    outlive_readers()
    try:
        code = _call()
    except KeyboardInterrupt:
        _tell("interrupted\n")
        code = ExitCode.INTERRUPTED
    except SystemExit as why:
        code = _code_of(why)
    except Exception as why:  # noqa: BLE001 - the last door: Python's own code for it, 1, is another's
        code = _fault(why)
    interrupts.settle()
    code = _flushed(code)
    interrupts.leave(code)
    sys.exit(code)


def _code_of(why: SystemExit) -> int:
    """Of some library's own end; one with words is a fault."""
    if isinstance(why.code, str):
        _tell(f"error: {why.code}\n")
        return ExitCode.NOT_VALID
    return why.code or ExitCode.OK


def _open_standard_streams() -> None:
    """A parent may have closed 0, 1 or 2: the next file opened would take its place, and event loops abort."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))  # noqa: SIM115


def _tell(text: str) -> None:
    """On stderr, if anybody reads it."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        return


def _flushed(code: int) -> int:
    """What is still to be written goes out or is let go: Python would end with a code of its own (120)."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as why:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            if stream is sys.stdout and code != ExitCode.USAGE:
                code = _of_machine(why)
    return code


def _of_machine(why: OSError) -> int:
    _tell(f"error: cannot write {why.filename or 'standard output'}: {why.strerror}\n")
    return ExitCode.NOT_VALID


def _call() -> int:
    import typer

    from loadgen.cli.app import app
    from loadgen.records import LoadgenError

    try:
        # Not by typer's own main, which makes an exit code of an interrupt that nobody has told.
        command = typer.main.get_command(app)
        with command.make_context("loadgen", sys.argv[1:]) as context:
            return command.invoke(context) or ExitCode.OK
    except typer.Exit as why:
        return why.exit_code
    except typer.Abort as why:
        raise KeyboardInterrupt from why
    except LoadgenError as why:
        _tell(f"error: {why}\n")
        return why.exit_code
    except Exception as why:
        show = getattr(why, "show", None)
        if show is None:
            raise
        with contextlib.suppress(
            OSError
        ):  # click's usage errors; newer versions of typer bring a copy of click along
            show()
        return int(getattr(why, "exit_code", ExitCode.USAGE))


def _fault(why: Exception) -> int:
    """Of ours, or of the machine."""
    if interrupts.came():  # code in C, and some in Python, answers an interrupt with a fault of its own
        _tell("interrupted\n")
        return ExitCode.INTERRUPTED
    if os.environ.get(TRACE):
        _tell("".join(traceback.format_exception(why)))
    if isinstance(why, OSError) and why.errno in _OF_THE_MACHINE:
        return _of_machine(why)
    _tell(f"error: {type(why).__name__}: {why} (a fault in loadgen; {TRACE}=1 shows where)\n")
    return ExitCode.NOT_VALID


if __name__ == "__main__":
    main()
