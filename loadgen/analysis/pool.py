"""Several runs of the same kinds read as one, so that whatever judges a run judges all of their requests together.

Every phase of every run is a phase of the pool, named `<place of the run>/<phase>`: rates are over the summed spans,
percentiles over all requests, and the server's counters keep to their own phases.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from loadgen.records import LoadgenError
from loadgen.runread import Run

WHOLE = ("finished", "interrupted")  # whose records are all there


@dataclass(frozen=True, slots=True)
class _Pool(Run):
    """Stamps stay those of each run: no figure reaches over two phases."""

    runs: tuple[Run, ...] = ()

    def batches(self) -> Iterator[Any]:
        for place, run in enumerate(self.runs):
            for batch in run.batches():
                yield _named(batch, place)

    @property
    def watch(self) -> list[dict[str, Any]]:
        """None: looks are ordered in time, and the runs' clocks do not follow each other."""
        return []

    @property
    def has_streams(self) -> bool:
        return any(run.has_streams for run in self.runs)

    def stream_batches(self) -> Iterator[Any]:
        for place, run in enumerate(self.runs):
            for batch in run.stream_batches():
                yield _named(batch, place)


def pool(runs: Sequence[Run]) -> Run:
    """One or more runs as one; their doubts stay their own, and a first request is that of the run where it was slowest.

    Raises LoadgenError where their kinds differ: their requests are not alike; and of several on one that was killed or
    given up: what became of its last requests is known of a run by itself only.
    """
    first = runs[0]
    kinds = [kind["name"] for kind in first.info.get("kinds", [])]
    for run in runs:
        if [kind["name"] for kind in run.info.get("kinds", [])] != kinds:
            raise LoadgenError(
                f"{run.path}: its kinds are not those of {first.path}: they cannot be judged together"
            )
    if len(runs) == 1:
        return first
    for run in runs:
        if run.info.get("status") not in WHOLE:
            raise LoadgenError(
                f"{run.path}: its status is {run.info.get('status')}; judged together are: {', '.join(WHOLE)}"
            )
    phases: list[dict[str, Any]] = []
    server: list[dict[str, Any]] = []
    for place, run in enumerate(runs):
        phases += [
            phase | {"name": _name(place, phase["name"]), "run": place + 1}
            for phase in run.info.get("phases", [])
        ]
        server += [line | {"phase": _name(place, line.get("phase"))} for line in run.server]
    asked = [run.info.get("first_request_ns") or {} for run in runs]
    slowest = {
        kind: max((one[kind] for one in asked if one.get(kind) is not None), default=None) for kind in kinds
    }
    info = first.info | {"phases": phases, "doubts": [], "first_request_ns": slowest}
    return _Pool(first.path, info, [], sum(run.rows for run in runs), server, runs=tuple(runs))


def own_name(phase: dict[str, Any]) -> str:
    """A phase's name within its own run."""
    name = str(phase["name"])
    return name.removeprefix(f"{phase['run']}/") if "run" in phase else name


def _name(place: int, phase: object) -> str:
    return f"{place + 1}/{phase}"


def _named(batch: Any, place: int) -> Any:
    """The batch with its phases under the pool's names; no row is touched, they are a dictionary."""
    import pyarrow as pa

    column = batch.column("phase")
    names = pa.array([_name(place, text) for text in column.dictionary.to_pylist()], pa.string())
    renamed = pa.DictionaryArray.from_arrays(column.indices, names)
    at = batch.schema.get_field_index("phase")
    columns = [renamed if i == at else one for i, one in enumerate(batch.columns)]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
