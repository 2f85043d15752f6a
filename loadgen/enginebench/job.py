"""From a source to a folder of results: the order of events, and what to choose afterwards.

It must not know the command line.
"""

import errno
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from loadgen.convert.calibration import Calibration, made_rows, open_calibration, text_samples
from loadgen.convert.encoder import Encoder, contained, load_encoder, require_libraries
from loadgen.convert.options import SourceOptions
from loadgen.convert.sources import Source, find_source, numbers
from loadgen.enginebench.cells import Asked, Cell
from loadgen.enginebench.engines import Unavailable
from loadgen.enginebench.facts import facts
from loadgen.enginebench.result import Wanted, as_csv, slowest, summary
from loadgen.enginebench.run import Say, measure, opened
from loadgen.enginebench.trace import write_trace
from loadgen.records import LoadgenError, NotWrittenError
from loadgen.runfile import write_atomic

RESULT, CELLS, PAGE, TRACE = "engine.json", "cells.csv", "engine.html", "trace.json"
_ROWS_A_LENGTH = 32
_LENGTHS = (16, 64, 128)


@dataclass(frozen=True, slots=True)
class Job:
    """`out` None: nothing is written.  `wanted`: choose by it.  `trace`: profile the slowest cell, into `out`.

    `meant` says how the source is to be understood, as for a conversion.
    """

    source: str
    asked: Asked
    calibration: Path | None = None
    wanted: Wanted | None = None
    trace: bool = False
    out: Path | None = None
    meant: SourceOptions = field(default_factory=SourceOptions)


def bench_engine(
    job: Job, say: Say = lambda _: None, measured: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Measures and returns what engine.json holds; an interrupted grid is `finished: false`.

    `measured` is told when there is something to keep and nothing left but to write it.  What could be measured and
    not written has its reason in `not_written`.  Raises LoadgenError, and KeyboardInterrupt before the first cell.
    """
    require_libraries()
    found = find_source(job.source, job.meant)
    try:
        with _made(job.out), contained(found.label):
            return _measured(job, found, say, measured)
    except OSError as why:
        if why.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        where = why.filename or os.environ.get("TMPDIR", "the folder of temporary files")
        raise NotWrittenError(where, why, "TMPDIR names another place") from None


@contextmanager
def _made(out: Path | None) -> Iterator[None]:
    """The folder is there before anything is measured; when nothing is, what was made for it goes again."""
    new = [] if out is None else [folder for folder in (out, *out.parents) if not folder.exists()]
    try:
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
    except OSError as why:
        raise NotWrittenError(out, why, "name a writable folder with --out") from None
    try:
        yield
    except BaseException:
        with suppress(OSError):  # not empty
            for folder in new:
                folder.rmdir()
        raise


def _measured(job: Job, found: Source, say: Say, measured: Callable[[], None]) -> dict[str, Any]:
    say(f"loading {found.label} from {found.origin}")
    encoder = load_encoder(found, max(job.asked.lengths, default=None))
    if not job.asked.lengths:
        some = tuple(length for length in _LENGTHS if length <= encoder.max_length)
        job = replace(job, asked=replace(job.asked, lengths=some or (encoder.max_length,)))
    calibration = _calibration(job, found, encoder)
    samples = text_samples(encoder, found.folder)
    told_facts = facts(found, job.asked.device)
    told_facts["notes"] = [*found.notes, *encoder.notes]
    for note in told_facts["notes"]:
        say(note)
    told_facts["calibration"] = None if calibration is None else dict(calibration.facts)
    with opened(
        encoder, job.asked, samples=samples, calibration=calibration, constants=numbers(found.config), say=say
    ) as bench:  # fmt: skip
        cells: list[Cell] = []
        traced, finished = None, False
        try:
            cells.extend(measure(bench, say))  # cell by cell: an interrupt keeps them
            if job.trace and job.out is not None and (cell := slowest(cells)) is not None:
                say(f"tracing {cell.runtime}, {cell.precision}: batch {cell.batch}, length {cell.length}")
                traced = _trace(bench, cell, job.out / TRACE)
            finished = True
        except KeyboardInterrupt:
            if not cells:
                raise
        measured()
        told = summary(job.asked, cells, told_facts, finished=finished, wanted=job.wanted)
        told["trace"] = traced
    if job.out is not None:
        try:
            _write(job.out, told, cells)
        except LoadgenError as why:  # minutes of measuring are shown all the same
            told["not_written"] = str(why)
    return told


def _calibration(job: Job, found: Source, encoder: Encoder) -> Calibration | None:
    """The rows asked for; without any, texts of the lengths that are measured: enough for speed and memory."""
    if job.asked.mode != "infer" or not {"int8", "fp8"} & set(job.asked.precisions):
        return None
    if job.calibration is not None:
        return open_calibration(job.calibration, encoder, found.folder)
    lengths = sorted(set(job.asked.lengths)) * _ROWS_A_LENGTH
    try:
        make, how = made_rows(encoder, found.folder, lengths)
        next(make())
    except LoadgenError:  # a tokenizer that is none
        make, how = made_rows(encoder, found.folder / "none", lengths)
    return Calibration(make, {"source": "the lengths measured", "made_of": how, "rows": len(lengths)})


def _trace(bench: Any, cell: Cell, file: Path) -> dict[str, Any]:
    try:
        by = write_trace(bench, cell, file)
    except Unavailable as why:
        return {"error": str(why)}
    return {
        "file": file.name, "by": by, "runtime": cell.runtime, "precision": cell.precision, "batch": cell.batch,
        "length": cell.length,
    }  # fmt: skip


def _write(out: Path, told: dict[str, Any], cells: list[Cell]) -> None:
    if "file" not in (told["trace"] or {}):  # an earlier benchmark's is not this one's
        (out / TRACE).unlink(missing_ok=True)
    write_atomic(out / RESULT, json.dumps(told, indent=1, allow_nan=False) + "\n")
    write_atomic(out / CELLS, as_csv(cells))
    from loadgen.enginebench.page import (
        page,
    )  # here: a machine without the page's libraries keeps its figures

    write_atomic(out / PAGE, page(told))
