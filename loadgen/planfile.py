"""A plan as a file: every arrival with its due time, kind, lengths and draw, to be looked at or sent again.

Arrow IPC, one row an arrival (of a closed loop: one a turn of its cycle, without a due time): pandas, polars and
duckdb read it.  The same profile, the same plan file: the same bytes at the same times.  This module must not
know how a plan is made nor what is sent.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from loadgen.records import LoadgenError, NotWrittenError, PhasePlan, Plan

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

FORMAT = 1
_KEY = b"loadgen.plan"
_COLUMNS = {"due_ns": np.int64, "kind": np.int16, "length": np.int32, "output": np.int32, "draw": np.uint32}
_PLAIN = [field.name for field in fields(PhasePlan) if field.name not in _COLUMNS]


def save_plan(plan: Plan, path: Path, profile_sha256: str) -> None:
    """Writes it whole.  Raises LoadgenError for a path that exists, NotWrittenError for one that cannot be written."""
    import pyarrow as pa

    about = {
        "format": FORMAT, "seed": plan.seed, "kinds": plan.kinds, "profile_sha256": profile_sha256,
        "phases": [{name: getattr(phase, name) for name in _PLAIN} | {"rows": len(phase.kind)} for phase in plan.phases],
    }  # fmt: skip
    columns: dict[str, Any] = {"phase": np.repeat(np.arange(len(plan.phases), dtype=np.int16),
                                                  [len(phase.kind) for phase in plan.phases])}  # fmt: skip
    for name, kind in _COLUMNS.items():
        parts = [_filled(getattr(phase, name), len(phase.kind), kind) for phase in plan.phases]
        columns[name] = np.concatenate(parts)
    arrays = {n: pa.array(c, mask=c < 0) if n in ("due_ns", "length", "output") else pa.array(c)
              for n, c in columns.items()}  # fmt: skip
    table = pa.table(arrays).replace_schema_metadata({_KEY: json.dumps(about, default=str).encode()})
    try:
        with path.open("xb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    except FileExistsError:
        raise LoadgenError(f"plan {path}: exists already; name a file that does not exist yet") from None
    except OSError as why:
        with contextlib.suppress(OSError):  # half a plan is none
            path.unlink()
        raise NotWrittenError(path, why, "name a new file in a writable folder") from None


def load_plan(path: Path, kinds: tuple[str, ...]) -> tuple[Plan, str]:
    """A saved plan for a profile with these kinds, and the sha256 of the profile it was made from.

    Raises LoadgenError for a file that is none, or that names other kinds.
    """
    import pyarrow as pa

    try:
        with pa.memory_map(str(path)) as file:
            table = pa.ipc.open_file(file).read_all()
        about = json.loads((table.schema.metadata or {})[_KEY])
    except OSError as why:
        raise LoadgenError(f"plan {path}: {why.strerror or 'cannot be read'}") from None
    except (pa.ArrowInvalid, KeyError, ValueError):
        raise LoadgenError(
            f"plan {path}: not a plan of loadgen; make one with `loadgen profile show PROFILE --save {path}`"
        ) from None
    if about["format"] > FORMAT:
        raise LoadgenError(
            f"plan {path}: format {about['format']} is newer than this loadgen reads ({FORMAT})"
        )
    if tuple(about["kinds"]) != kinds:
        raise LoadgenError(
            f"plan {path}: is for the kinds {', '.join(about['kinds'])}; the profile has {', '.join(kinds)}"
        )
    phases, start = [], 0
    for told in about["phases"]:
        rows = table.slice(start, told.pop("rows"))
        start += rows.num_rows
        arrays = {name: _column(rows, name, kind) for name, kind in _COLUMNS.items()}
        if told["loop"] == "closed":
            arrays["due_ns"] = None
        phases.append(PhasePlan(**told, **arrays))
    return Plan(about["seed"], kinds, tuple(phases)), about["profile_sha256"]


def _filled(column: np.ndarray[Any, Any] | None, n: int, kind: Any) -> np.ndarray[Any, Any]:
    return np.full(n, -1, kind) if column is None else column


def _column(rows: pa.Table, name: str, kind: Any) -> Any:
    column = rows.column(name).combine_chunks()
    if column.null_count == len(column) and name != "draw":
        return None if len(column) else np.empty(0, kind)
    return np.asarray(column.fill_null(-1) if column.null_count else column).astype(kind)
