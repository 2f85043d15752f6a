"""S(b, L) out of runs: what executions of b rows took, in measured phases whose requests all had one length.

It must not know what the points are used for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from loadgen.analysis.frame import frame_of
from loadgen.analysis.server import counted
from loadgen.records import LoadgenError
from loadgen.runread import read_run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from loadgen.triton.statistics import Tally

Point = tuple[int, int, float]  # batch, length, ns
_FEWEST = 3  # executions of a size, below which its mean is no figure


def points_of_batches(batches: Mapping[int, Tally], length: int) -> list[Point]:
    """A point a batch size that was executed often enough."""
    return [
        (size, length, tally.ns / tally.count)
        for size, tally in sorted(batches.items())
        if tally.count >= _FEWEST
    ]


def points_of_runs(runs: Sequence[Path], model: str) -> list[Point]:
    """Of all phases of these runs that tell.  Raises LoadgenError when none does."""
    points = []
    for path in runs:
        run = read_run(path)
        frame = frame_of(run)
        places = {phase["name"]: place for place, phase in enumerate(run.info.get("phases", []))}
        for one in counted(run, frame):
            lengths = np.unique(frame.of_phase(places[one.phase]).length)
            if one.model == model and one.window is not None and len(lengths) == 1 and lengths[0] > 0:
                points += points_of_batches(one.window.batches, int(lengths[0]))
    if not points:
        named = ", ".join(str(path) for path in runs)
        raise LoadgenError(
            f"{named}: no measured phase of {model!r} with one length only and the server's statistics; "
            "the time of a batch at a length cannot be told (leave --run out to measure it)"
        )
    return points


def check_points(points: Sequence[Point]) -> None:
    """Raises LoadgenError when they cannot tell what a row and what a token costs."""
    lengths, batches = {length for _, length, _ in points}, {batch for batch, _, _ in points}
    if len(lengths) < 2 or len(batches) < 2:  # noqa: PLR2004 - a slope needs two
        raise LoadgenError(
            f"S(b, L) needs executions of at least two lengths and two batch sizes; there are {len(lengths)} lengths "
            f"and {len(batches)} sizes"
        )
