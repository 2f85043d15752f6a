"""Which payload variants a plan needs, and which of them each arrival sends.

Variants are built to demand: every distinct (tokens in, tokens out) of a kind gets at least one, those that
come often several, so that values vary as well.  It must not know tensors, texts or protocols.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadgen.records import PhasePlan, Plan, Wanted

VARIANTS = 512  # of a kind, where fewer lengths than that are asked for
_CHUNK = 2**19
_BITS = 24  # of a length: at most 10 million (traffic.lengths)

_Keys = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Demand:
    """`wanted` holds the variants of each kind; `picks` for each phase which of them, counted through all
    kinds, each arrival sends.
    """

    wanted: tuple[tuple[Wanted, ...], ...]
    picks: tuple[npt.NDArray[np.int32], ...]


def demand(
    plan: Plan, most: Sequence[int], in_order: Sequence[bool] = (), unrepeated: Sequence[bool] = ()
) -> Demand:
    """What a plan needs: about `most` variants of each kind, more where it asks for more different lengths.

    The variants of a kind that is `in_order` (default: none is) are sent one after the other, from the first
    in each phase; those of one that is `unrepeated` go on from phase to phase, so that none is sent twice before
    all were; those of others as the plan's draws have it.
    """
    counts: dict[int, int] = {}
    for phase in plan.phases:
        for keys in _keys(phase):
            for key, n in zip(*(a.tolist() for a in np.unique(keys, return_counts=True)), strict=True):
                counts[key] = counts.get(key, 0) + n
    asked = np.array(sorted(counts), np.int64)
    kinds = asked >> (2 * _BITS)
    times = np.array([counts[key] for key in asked.tolist()], np.int64)
    of_kind = np.bincount(kinds, times, minlength=len(plan.kinds))
    share = np.rint(np.array(most)[kinds] * times / np.maximum(of_kind[kinds], 1)).astype(np.int64)
    variants = np.clip(share, 1, times)
    first = np.concatenate([[0], np.cumsum(variants)[:-1]]) if len(asked) else variants
    wanted = tuple(
        tuple(w for key, n in zip(asked[kinds == k].tolist(), variants[kinds == k].tolist(), strict=True)
              for w in [_wanted(key)] * n)
        for k in range(len(plan.kinds))
    )  # fmt: skip
    from_first = np.array(in_order or [False] * len(plan.kinds))[kinds]
    turns = from_first | np.array(unrepeated or [False] * len(plan.kinds))[kinds]
    seen, picks = np.zeros(len(asked), np.int64), []
    for phase in plan.phases:
        seen[from_first] = 0
        picks.append(_picks(phase, asked, first, variants, turns, seen))
    return Demand(wanted, tuple(picks))


def sent_kinds(plan: Plan) -> set[int]:
    """The places of the kinds that the plan sends at all."""
    return {place for phase in plan.phases for place in np.unique(phase.kind).tolist()}


def extremes(plan: Plan) -> list[tuple[Wanted, ...]]:
    """The shortest and the longest that each kind is asked for; empty where it has no lengths."""
    ends: list[tuple[Wanted, ...]] = []
    for place in range(len(plan.kinds)):
        columns = [phase.length[phase.kind == place] for phase in plan.phases if phase.length is not None]
        found = [(int(part.min()), int(part.max())) for part in columns if len(part) and part.max() >= 0]
        both = (min(low for low, _ in found), max(high for _, high in found)) if found else ()
        ends.append(tuple(Wanted(n) for n in both if n >= 0))
    return ends


def typical(plan: Plan) -> list[Wanted | None]:
    """One variant a kind: the middle one of the lengths it asks for; None for a kind that is never sent."""
    every = demand(plan, [1] * len(plan.kinds)).wanted
    return [of_kind[len(of_kind) // 2] if of_kind else None for of_kind in every]


def _keys(phase: PhasePlan) -> Iterator[_Keys]:
    """Kind, tokens in and tokens out of each arrival in one number, some at a time."""
    for start in range(0, len(phase.kind), _CHUNK):
        part = slice(start, start + _CHUNK)
        keys = phase.kind[part].astype(np.int64) << (2 * _BITS)
        for column, shift in ((phase.length, _BITS), (phase.output, 0)):
            if column is not None:
                keys += (column[part].astype(np.int64) + 1) << shift
        yield keys


def _wanted(key: int) -> Wanted:
    mask = (1 << _BITS) - 1
    length, output = (key >> _BITS) & mask, key & mask
    return Wanted(length - 1 if length else None, output - 1 if output else None)


def _picks(
    phase: PhasePlan,
    asked: _Keys,
    first: npt.NDArray[np.int64],
    variants: npt.NDArray[np.int64],
    turns: npt.NDArray[np.bool_],
    seen: npt.NDArray[np.int64],
) -> npt.NDArray[np.int32]:
    """`seen` counts how often each was sent before this phase, and is brought up to date."""
    picks = np.empty(len(phase.kind), np.int32)
    for number, keys in enumerate(_keys(phase)):
        part = slice(number * _CHUNK, number * _CHUNK + len(keys))
        at = np.searchsorted(asked, keys)
        which = phase.draw[part].astype(np.int64)
        if turns.any():
            which = np.where(turns[at], _turns(at, seen), which)
        picks[part] = first[at] + which % variants[at]
    return picks


def _turns(at: npt.NDArray[np.intp], seen: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """How many of its like came before each; `seen` are those before the first, and is brought up to date."""
    order = np.argsort(at, kind="stable")
    like = at[order]
    start = np.flatnonzero(np.concatenate([[True], like[1:] != like[:-1]])) if len(at) else order
    before = np.empty(len(at), np.int64)
    before[order] = np.arange(len(at)) - np.repeat(start, np.diff(np.append(start, len(at))))
    before += seen[at]
    seen += np.bincount(at, minlength=len(seen))
    return before
