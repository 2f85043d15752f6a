"""The console script: errors become one line and an exit code.

Exit codes: 0 ok, 1 an objective was missed, 2 usage (nothing was sent), 3 the measurement is not valid or
something broke, 130 interrupted.  Nothing heavy is imported before the first `try`.
"""

from __future__ import annotations

import os
import sys

TRACE = "LOADGEN_TRACE"


def main() -> None:
    """Runs the command line and exits."""
    try:
        code = _call()
        sys.stdout.flush()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        code = 130
    except BrokenPipeError:  # `loadgen report | head`: the reader had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code)


def _call() -> int:
    import typer

    from loadgen.cli.app import app
    from loadgen.records import LoadgenError

    try:
        return app(prog_name="loadgen", standalone_mode=False) or 0
    except typer.Abort as why:
        raise KeyboardInterrupt from why
    except LoadgenError as why:
        sys.stderr.write(f"error: {why}\n")
        return why.exit_code
    except (BrokenPipeError, KeyboardInterrupt):
        raise
    except Exception as why:  # the last door: a fault of ours, or of the machine (standard output is full)
        show = getattr(why, "show", None)
        if show is not None:  # click's usage errors; newer versions of typer bring a copy of click along
            show()
            return int(getattr(why, "exit_code", 2))
        if os.environ.get(TRACE):
            raise
        sys.stderr.write(f"error: {type(why).__name__}: {why} (a fault in loadgen; {TRACE}=1 shows where)\n")
        return 3


if __name__ == "__main__":
    main()
