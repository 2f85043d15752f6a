"""Buckets for lengths, driven: S(b, L) measured on a server, and a choice held against the lengths as they come.

It must not know how buckets are chosen; that is analysis.buckets'.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from loadgen import schedule
from loadgen.analysis.service_points import Point, points_of_batches
from loadgen.connect.options import ConnectOptions
from loadgen.lab.cold_repeat import Site, ask
from loadgen.lab.cold_shapes import cold_kinds, make_shapes
from loadgen.lab.loop import new_loop
from loadgen.lab.run import Order, measure
from loadgen.records import LoadgenError, ModelFacts, NotMeasuredError, Outcome
from loadgen.report.write import write_reports
from loadgen.target import Target, parse_target
from loadgen.traffic.profile import parse_profile
from loadgen.triton.control import Control
from loadgen.triton.local import LocalTriton
from loadgen.triton.statistics import window
from loadgen.units import show_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from loadgen.traffic.profile import TrafficProfile

Told = TypeVar("Told")
_TIMES = 8  # requests of each batch and length
_WARM = 2  # before them, in no figure
_GRID = 4  # lengths
_WAIT_NS = 120 * 10**9


@dataclass(frozen=True, slots=True)
class Lengths:
    """What a profile asks of one model: different lengths, ascending, and how often each comes."""

    model: str
    lengths: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]


def lengths_of(profile: TrafficProfile, model: str | None) -> Lengths:
    """Of all measured phases.  Raises LoadgenError when there are none or of one length only."""
    kinds, name = cold_kinds(profile, model)
    plan = schedule.plan(profile, profile.seed)
    places = [plan.kinds.index(kind.name) for kind in kinds]
    phases = [p for p in plan.phases if p.measured] or list(plan.phases)
    columns = [p.length[np.isin(p.kind, places)] for p in phases if p.length is not None]
    every = np.concatenate(columns) if columns else np.array([], np.int32)
    lengths, counts = np.unique(every[every > 0], return_counts=True)
    if len(lengths) < 2:  # noqa: PLR2004 - one length needs no bucket
        raise LoadgenError(
            f"the profile asks {name!r} for {len(lengths) or 'no'} length: there is nothing to bucket"
        )
    return Lengths(name, lengths.astype(np.int64), counts.astype(np.int64))


@contextmanager
def served(
    target: Target | None, repository: Path, model: str, say: Callable[[str], None], *, ragged: bool | None
) -> Iterator[Target]:
    """The target, or an embedded server with the model loaded; there `ragged` lays allow_ragged_batch over it."""
    if target is not None:
        yield target
        return
    with LocalTriton(repository, models=[model], say=say) as server:
        where = parse_target(server.grpc_target)
        if ragged is not None:
            facts = _run(_facts(where, model))
            config = dict(facts.config or {})
            config["input"] = [{**one, "allow_ragged_batch": ragged} for one in config["input"]]
            server.load(model, config)
        yield where


def measure_points(
    profile: TrafficProfile, target: Target, asked: Lengths, say: Callable[[str], None]
) -> list[Point]:
    """S(b, L) on a quiet server: requests of b rows, one at a time, at the quantiles of the lengths.

    Raises NotMeasuredError when the server refuses or does not count its batches.
    """
    return _run(_measure_points(profile, target, asked, say))


async def _measure_points(
    profile: TrafficProfile, target: Target, asked: Lengths, say: Callable[[str], None]
) -> list[Point]:
    kinds, model = cold_kinds(profile, asked.model)
    plan = schedule.plan(profile, profile.seed)
    share = np.cumsum(asked.counts) / asked.counts.sum()
    at = [int(asked.lengths[np.searchsorted(share, q)]) for q in np.linspace(0, 1, _GRID)]
    points: list[Point] = []
    async with Control(target) as control:
        facts = await control.model_facts(model, kinds[0].version)
        most = facts.max_batch_size or 1
        site = Site(control, ConnectOptions(), model, (), 1, _TIMES, _WAIT_NS, _WAIT_NS, _WAIT_NS)
        for batch in sorted({1 << i for i in range(most.bit_length()) if 1 << i <= most} | {most}):
            kind = kinds[0].model_copy(update={"batch": batch})
            for shape in make_shapes([kind], {kind.version: facts}, target, profile, plan, buckets=1,
                                     lengths=tuple(dict.fromkeys(at))):  # fmt: skip
                say(f"measuring {batch} rows of length {shape.length}, each within {show_ns(_WAIT_NS)}")
                await _asked(site, shape.requests * (_WARM // len(shape.requests) + 1))
                before = await control.settled_statistics(model)
                await _asked(site, shape.requests * (_TIMES // len(shape.requests)))
                seen = window(before, await control.settled_statistics(model))
                points += points_of_batches(seen.batches, shape.length or 0)
    if not points:
        raise NotMeasuredError(f"{target.url} counts no batches of {model!r}: their time cannot be told")
    return points


async def _asked(site: Site, requests: Sequence[Any]) -> None:
    for answer in await ask(site, requests, in_flight=1):
        if answer.outcome is not Outcome.OK:
            words = answer.detail or answer.outcome.name.lower()
            if answer.outcome is Outcome.TIMEOUT:
                words = f"no whole answer within {show_ns(site.timeout_ns)}"
            raise NotMeasuredError(f"model {site.model!r} did not answer: {words}")


def confirm(  # noqa: PLR0913 - each by name
    profile: TrafficProfile,
    target: Target,
    asked: Lengths,
    bounds: Mapping[str, Sequence[int]],
    out: Path,
    *,
    most: int,
    seconds: int,
    say: Callable[[str], None],
) -> dict[str, dict[str, Any]]:
    """What each choice (its bounds; none: the lengths as they are) really gives at saturation, by its name.

    A closed loop of three batches of users each; the choices are run one after the other, then once more backwards,
    and the two runs averaged, so that a drift favours none.
    """
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in bounds}
    names = list(bounds)
    for turn, name in enumerate(names + names[::-1]):
        say(f"confirming {name}, {turn + 1} of {2 * len(names)}")
        text = _saturating(profile, asked, bounds[name], most, seconds)
        order = Order(
            profile=parse_profile(text, f"{name} (made by loadgen buckets)"),
            target=target, seed=profile.seed, out=out / f"{turn + 1}-{name}", command=["loadgen", "buckets"],
        )  # fmt: skip
        done = measure(order)
        if done.interrupted:
            raise KeyboardInterrupt
        summary = write_reports(done.path)
        total, server = summary["total"], summary["server"] or {}
        found[name].append(
            {
                "per_s": total["achieved_per_s"],
                "mean_batch": server.get("mean_batch"),
                "p50_ns": total["latency_ns"]["p50"],
                "p99_ns": total["latency_ns"]["p99"],
                "run": str(done.path),
            }
        )
    return {name: _mean(rows) for name, rows in found.items()}


def _mean(rows: list[dict[str, Any]]) -> dict[str, Any]:
    told: dict[str, Any] = {"runs": [row["run"] for row in rows]}
    for key in ("per_s", "mean_batch", "p50_ns", "p99_ns"):
        known = [row[key] for row in rows if row[key] is not None]
        told[key] = sum(known) / len(known) if known else None
    told["per_s_runs"] = [row["per_s"] for row in rows]
    return told


def _saturating(
    profile: TrafficProfile, asked: Lengths, bounds: Sequence[int], most: int, seconds: int
) -> str:
    """A profile of one kind whose lengths are those of `asked`, each rounded up to its bound."""
    ends = np.array(bounds or asked.lengths)
    at = ends[np.searchsorted(ends, asked.lengths)]
    lengths = [
        f"{{at: {length}, weight: {int(asked.counts[at == length].sum())}}}" for length in np.unique(at)
    ]
    users = 3 * most
    return (
        f"name: buckets\nseed: {profile.seed}\nkinds:\n"
        f"  k: {{model: {asked.model}, timeout: 60s, length: {{histogram: [{', '.join(lengths)}]}}}}\n"
        "phases:\n"
        f"  - {{name: warm-up, warmup: true, closed: {{users: {users}, requests: {2 * users}}}}}\n"
        f"  - {{name: saturated, closed: {{users: {users}, duration: {seconds}s}}}}\n"
    )


def is_ragged(facts: ModelFacts) -> bool:
    """Whether the batcher merges requests of different lengths."""
    return any(one.get("allow_ragged_batch") for one in (facts.config or {}).get("input") or ())


async def _facts(target: Target, model: str) -> ModelFacts:
    async with Control(target) as control:
        return await control.model_facts(model)


def facts_at(target: Target, model: str) -> ModelFacts:
    """What the server says of the model.  Raises LoadgenError."""
    return _run(_facts(target, model))


def _run(work: Coroutine[Any, Any, Told]) -> Told:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(work)
