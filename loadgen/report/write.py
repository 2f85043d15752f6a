"""Writes summary.json and report.html into a run folder, each whole or not at all.

Both can be made again at any time from the records.  This module must not know how they are made.
"""

import errno
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from loadgen.analysis.frame import frame_of
from loadgen.analysis.pool import pool
from loadgen.analysis.repeats import runs_in, summarise_folders
from loadgen.records import NotWrittenError
from loadgen.report.html import render
from loadgen.runfile import REPORT, SUMMARY, write_atomic


def write_reports(
    paths: Path | str | Sequence[Path],
    html_path: Path | None = None,
    failed: Callable[[NotWrittenError], None] | None = None,
) -> dict[str, Any]:
    """The summary of a run, of a folder of repeats, or of several of these together, after it was written.

    summary.json and report.html go into the folder; of several folders nothing is written but the page, to `html_path`
    if that is given.  `failed`, if given, is told why a file could not be written, instead of that being raised.

    Raises LoadgenError when a folder is no run, NotWrittenError when it cannot be written to, or `html_path` cannot.
    """
    folders = [Path(paths)] if isinstance(paths, str | Path) else list(paths)
    if html_path is not None:
        _check_page(html_path)
    run = pool(runs_in(folders))
    frame = frame_of(run)
    summary = summarise_folders(folders, frame=frame)
    path = folders[0] if len(folders) == 1 else None
    page = html_path or (path and path / REPORT)
    try:
        if path is not None:
            write_atomic(path / SUMMARY, dumps(summary))
        if page is not None:
            write_atomic(page, render(run, summary, frame))
    except NotWrittenError as why:
        if failed is None:
            raise
        failed(why)
    return summary


def _check_page(path: Path) -> None:
    """Before the work, not after it."""
    for wrong, number in (
        (path.is_dir(), errno.EISDIR),
        (not path.parent.is_dir(), errno.ENOENT),
        (not os.access(path.parent, os.W_OK), errno.EACCES),
    ):
        if wrong:
            why = OSError(number, os.strerror(number))
            raise NotWrittenError(path, why, "name a file in a writable folder with --html")


def write_file(path: Path, text: str, option: str) -> None:
    """Writes a file that an option names, whole or not at all; through a link, not over it.

    Raises NotWrittenError: also for what is no regular file, such as /dev/stdout, which would be replaced by one.
    """
    place = path.resolve()
    hint = f"name a file in a writable folder with {option}"
    if place.exists() and not place.is_file():
        raise NotWrittenError(path, OSError(errno.EINVAL, "not a regular file"), hint)
    try:
        write_atomic(place, text)
    except NotWrittenError as why:
        raise NotWrittenError(path, why.why, hint) from None


def dumps(summary: dict[str, Any]) -> str:
    """As it stands in summary.json: no NaN, no infinity; half a pair of surrogates as JSON escapes it."""
    text = json.dumps(summary, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
