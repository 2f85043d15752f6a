"""How many variants of a kind memory allows, and lengths rounded where all of them would be too many.

It must not know tensors, models or protocols.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadgen.records import Wanted
from loadgen.units import show_bytes
from loadgen.workload.demand import VARIANTS, Demand

BUDGET_BYTES = 64 * 2**20  # of a kind's variants
MOST_BYTES = 2**30  # whatever the fewest variants come to
_FEWEST = 8
_STEPS = (
    0.0,
    0.01,
    0.02,
    0.05,
    0.1,
    0.2,
    0.5,
    1.0,
    3.0,
    9.0,
    99.0,
    1e9,
)  # relative widths of what is taken together
_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Rounding:
    """What stands in for each variant wanted, and in words what that changed ("" for nothing)."""

    mapping: dict[Wanted, Wanted]
    text: str


def affordable(
    size: int, budget_bytes: int = BUDGET_BYTES, most: int = VARIANTS, fewest: int = _FEWEST
) -> int:
    """How many variants of at most `size` bytes: within the budget, but at least 8 unless those pass 1 GiB."""
    size = max(size, 1)
    n = max(min(most, budget_bytes // size), fewest)
    return max(1, min(n, MOST_BYTES // size))


def within_memory(
    needed: Demand, sizes: Sequence[Callable[[Wanted], int]], budgets: Sequence[int]
) -> tuple[Demand, list[str]]:
    """The same demand with fewer variants of each kind whose bytes would pass its budget.

    First fewer of one length, then lengths rounded to fewer; also in words, kind for kind ("" where no length
    changed).  `sizes` are bytes of a variant of a kind.
    """
    times = np.zeros(sum(map(len, needed.wanted)), dtype=np.int64)
    for picks in needed.picks:
        times += np.bincount(picks, minlength=len(times))
    wanted, texts, index = [], [], []
    start = ours = 0
    for wants, size_of, budget in zip(needed.wanted, sizes, budgets, strict=True):
        kept, places, text = _fewer(wants, times[start : start + len(wants)], size_of, budget)
        wanted.append(kept)
        texts.append(text)
        index.append(places + ours)
        start, ours = start + len(wants), ours + len(kept)
    moved = np.concatenate(index) if index else times
    return Demand(tuple(wanted), tuple(moved[picks].astype(np.int32) for picks in needed.picks)), texts


def _fewer(
    wants: tuple[Wanted, ...], times: _Ints, size_of: Callable[[Wanted], int], budget: int
) -> tuple[tuple[Wanted, ...], _Ints, str]:
    """A kind's variants within its budget, the place of each old one among them, what changed."""
    repeats = Counter(wants)
    total = sum(size_of(want) * n for want, n in repeats.items())
    if total <= budget or (len(wants) <= _FEWEST and total <= MOST_BYTES):
        return wants, np.arange(len(wants)), ""
    counts: Counter[Wanted] = Counter()
    for want, n in zip(wants, times.tolist(), strict=True):
        counts[want] += n
    rounding = round_lengths(list(counts), list(counts.values()), budget, size_of)
    share = max(budget - sum(map(size_of, set(rounding.mapping.values()))), 0) / total  # beside one of each
    wished: Counter[Wanted] = Counter()
    for want, n in repeats.items():
        wished[rounding.mapping[want]] += n
    variants = {want: 1 + int(n * share) for want, n in wished.items()}
    first: dict[Wanted, int] = {}
    kept: list[Wanted] = []
    for want, n in variants.items():
        first[want] = len(kept)
        kept += [want] * n
    turn: Counter[Wanted] = Counter()
    places = np.empty(len(wants), dtype=np.int64)
    for at, old in enumerate(wants):
        want = rounding.mapping[old]
        places[at] = first[want] + turn[want] % variants[want]
        turn[want] += 1
    return tuple(kept), places, rounding.text


def round_lengths(
    wanted: Sequence[Wanted],
    counts: Sequence[int],
    budget_bytes: int,
    size_of: Callable[[Wanted], int],
) -> Rounding:
    """Fewer distinct lengths where one variant each would pass the budget.

    `wanted` are distinct, `counts` how often each is sent, `size_of` its bytes (asked once a length).
    Lengths (and outputs) of one relative step are taken together and sent as their mean, so that the tokens
    of the whole run stay as they were but for halves; the narrowest step that fits is taken.  At least 8
    variants stay, unless those pass 1 GiB.
    """
    length, output = (_column(wanted, name) for name in ("length", "output"))
    weight = np.maximum(np.asarray(counts, dtype=np.float64), 1e-9)
    sizes: dict[int, int] = {}
    for want, n in zip(wanted, length.tolist(), strict=True):
        if n not in sizes:
            sizes[n] = size_of(want)
    known = np.array(sorted(sizes), dtype=np.float64)
    bytes_of = np.array([sizes[int(n)] for n in known], dtype=np.float64)
    for step in _STEPS:
        cell = _cells(length, output, step)
        stand_in = [_means(column, cell, weight) for column in (length, output)]
        total = float(np.interp(stand_in[0], known, bytes_of).sum()) if len(known) else 0.0
        cells = len(stand_in[0])
        if total <= budget_bytes or (cells <= _FEWEST and total <= MOST_BYTES) or step == _STEPS[-1]:
            break
    ours = [Wanted(_plain(a), _plain(b)) for a, b in zip(*(c.tolist() for c in stand_in), strict=True)]
    mapping = {want: ours[at] for want, at in zip(wanted, cell.tolist(), strict=True)}
    if not step:
        return Rounding(mapping, "")
    how = f"to within about {step / 2:.1%}" if step <= 1 else "coarsely"
    text = (f"lengths rounded {how}: {len(wanted):,} different ones became {cells:,}, so that their requests fit "
            f"{show_bytes(budget_bytes)} of memory")  # fmt: skip
    return Rounding(mapping, text)


def _column(wanted: Sequence[Wanted], name: str) -> _Ints:
    return np.array([-1 if (n := getattr(want, name)) is None else n for want in wanted], dtype=np.int64)


def _cells(length: _Ints, output: _Ints, step: float) -> _Ints:
    """Which cell each falls in, counted from 0; -1 (none) keeps to itself."""
    if not step:
        return np.arange(len(length))
    both = [np.where(column > 0, np.floor(np.log(np.maximum(column, 1)) / np.log1p(step)), column - 1).astype(np.int64)
            for column in (length, output)]  # fmt: skip
    _, cell = np.unique(np.stack(both), axis=1, return_inverse=True)
    return cell.ravel().astype(np.int64)


def _means(column: _Ints, cell: _Ints, weight: npt.NDArray[np.float64]) -> _Ints:
    means: _Ints = np.rint(np.bincount(cell, column * weight) / np.bincount(cell, weight)).astype(np.int64)
    return means


def _plain(n: int) -> int | None:
    return None if n < 0 else n
