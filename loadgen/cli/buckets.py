"""`loadgen buckets`: which few lengths to pad to."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadgen.cli.progress import Progress
from loadgen.cli.quick import numpy_without_threads
from loadgen.target import parse_target

if TYPE_CHECKING:
    from loadgen.analysis.buckets import Buckets
    from loadgen.analysis.service_points import Point
    from loadgen.lab.buckets import Lengths

_AS_THEY_ARE, _RAGGED = "as they are", "ragged"
_RAGGED_NOW = (
    'the model allows ragged batches: its server merges any lengths now, so hold "ragged" against the buckets'
)


def buckets(
    profile: Annotated[Path, typer.Argument(help="A traffic profile (YAML): the lengths it asks for.")],
    run: Annotated[
        list[Path] | None,
        typer.Option(
            help="A run to read S(b, L) from, with a phase a length; repeatable. Default: measure it."
        ),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="The server to measure on; left out: an embedded one.")
    ] = None,
    repository: Annotated[Path, typer.Option(help="Model repository of the embedded server.")] = Path(
        "model_repository"
    ),
    model: Annotated[str | None, typer.Option(help="Which model, where the profile has several.")] = None,
    most_buckets: Annotated[int, typer.Option(min=1, max=64, help="Try 1 to so many buckets.")] = 8,
    max_batch: Annotated[
        int | None, typer.Option(min=1, max=4096, help="Rows a batch; default: the model's max_batch_size.")
    ] = None,
    confirm: Annotated[
        bool, typer.Option("--confirm", help="Measure the choice against the lengths as they are.")
    ] = False,
    seconds: Annotated[int, typer.Option(min=1, help="Of each run of --confirm; a choice has two.")] = 8,
    out: Annotated[Path | None, typer.Option(help="Where --confirm keeps its runs.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")] = False,
) -> None:
    """Propose padding buckets for a length distribution, a warm-up grid and TensorRT profiles.

    Trades padding waste against lost batching, for a server that batches equal shapes only, in the order they came.

    Example: loadgen buckets traffic_profiles/mixed-lengths.yaml --confirm
    """
    numpy_without_threads()
    from rich.console import Console

    from loadgen.analysis.service_points import points_of_runs
    from loadgen.lab import buckets as lab
    from loadgen.records import LoadgenError
    from loadgen.report.buckets import print_buckets
    from loadgen.traffic.profile import load_profile

    read = load_profile(profile)
    asked = lab.lengths_of(read, model)
    where = parse_target(target) if target else None
    told: dict[str, Any]
    with Progress(quiet=quiet) as progress:
        if run and max_batch and not confirm:
            points, source = points_of_runs(run, asked.model), "runs"
            told = _told(asked, points, source, max_batch, most_buckets)
        else:
            with lab.served(where, repository, asked.model, progress.say, ragged=False) as server:
                most = max_batch or lab.facts_at(server, asked.model).max_batch_size or 0
                if not most:
                    raise LoadgenError(f"model {asked.model!r} takes no batches: there is nothing to trade")
                points = (
                    points_of_runs(run, asked.model)
                    if run
                    else lab.measure_points(read, server, asked, progress.say)
                )
                told = _told(asked, points, "runs" if run else "measured", most, most_buckets)
                if where is not None and lab.is_ragged(lab.facts_at(server, asked.model)):
                    told["note"] = _RAGGED_NOW
                if confirm:
                    folder = out or Path("runs") / f"{datetime.now(UTC):%Y%m%dT%H%M%S}-buckets"
                    choices = {name: told_bounds(told, name) for name in _to_confirm(told)}
                    told["measured"] = lab.confirm(
                        read, server, asked, choices, folder, most=most, seconds=seconds, say=progress.say
                    )
    if as_json:
        typer.echo(json.dumps(told, indent=1))
    else:
        print_buckets(told, Console(highlight=False))


def told_bounds(told: dict[str, Any], name: str) -> list[int]:
    """The bounds of a choice; none for the lengths as they are."""
    found: list[int] = next(one["bounds"] for one in told["choices"] if one["name"] == name)
    return found if name != _AS_THEY_ARE else []


def _to_confirm(told: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys([_AS_THEY_ARE, "1 bucket", told["chosen"]["name"]]))


def _told(asked: Lengths, points: list[Point], source: str, most: int, most_buckets: int) -> dict[str, Any]:
    from loadgen.analysis.buckets import (
        best_buckets,
        choose,
        fit_service,
        ragged,
        tensorrt_profiles,
        unpadded,
        warmup_grid,
    )
    from loadgen.analysis.service_points import check_points

    check_points(points)
    service = fit_service(points)
    found = best_buckets(asked.lengths, asked.counts, service, most, most_buckets)
    chosen = choose(found)
    choices = [
        _row(_AS_THEY_ARE, unpadded(asked.lengths, asked.counts, service, most)),
        *(_row(f"{k} bucket{'s' * (k > 1)}", one) for k, one in enumerate(found, 1)),
        _row(_RAGGED, ragged(asked.lengths, asked.counts, service, most)),
    ]
    return {
        "model": asked.model, "distinct_lengths": len(asked.lengths), "shortest": int(asked.lengths[0]),
        "longest": int(asked.lengths[-1]), "most": most,
        "service": {**asdict(service), "source": source}, "choices": choices,
        "chosen": next(row for row in choices if row["name"] != _AS_THEY_ARE and row["bounds"] == list(chosen.bounds)),
        "warmup_grid": warmup_grid(chosen, most), "tensorrt_profiles": tensorrt_profiles(chosen, most), "measured": None, "note": None,
    }  # fmt: skip


def _row(name: str, one: Buckets) -> dict[str, Any]:
    return {"name": name, **asdict(one), "bounds": list(one.bounds), "per_s": one.per_s}
