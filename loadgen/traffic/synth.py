"""Fits a profile to a trace, so that traffic can be shared without its rows.

Three laws, each told with how well it fits: a rate curve of constant stretches; the burstiness of what that curve
leaves over (gaps after time is stretched so that the rate is 1: a gamma law); lengths in and out, as histograms,
or as pairs where the two go together.  Every bar and every pair stands for at least FEWEST rows, and the ends of
what was seen are rounded outwards, so that no single row shows.  It must not know files.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadgen.records import LoadgenError
from loadgen.traffic.traces.read import TraceRows

FEWEST = 5
_FEWEST_ROWS = 20
_ROWS_A_STRETCH, _MOST_STRETCHES = 50, 48
_BARS, _PAIRED_BARS, _PAIRED_OUT = 32, 24, 8
_TOGETHER = 0.2  # rank correlation from which lengths in and out are written as pairs
_ALIKE = 2.5  # standard errors within which two neighbouring rates are one
_SILENCE = 20.0  # arrivals expected but not seen: no chance makes such a gap
_EVEN, _LEAST_BURSTINESS, _MOST_BURSTINESS = 0.005, 0.01, 1000.0

_Ints = npt.NDArray[np.int64]
_Reals = npt.NDArray[np.float64]
Bar = tuple[int, int, int]  # from, to, rows


@dataclass(frozen=True, slots=True)
class Rate:
    """Constant rates, one after the other, and how the gaps scatter about them."""

    width_ns: _Reals
    count: _Ints
    burstiness: float
    rate_error: float  # mean |trace - curve| of twentieths of the span, over their mean
    gap_ks: float  # the largest distance between the gaps' distribution and the law's


@dataclass(frozen=True, slots=True)
class KindFit:
    """One kind's share and lengths; `pairs` instead of the two histograms where lengths go together."""

    name: str
    rows: int
    length: tuple[Bar, ...]
    output: tuple[Bar, ...]
    pairs: tuple[tuple[int, int, int], ...]  # in, out, rows
    correlation: float
    length_ks: float
    output_ks: float


def synthesize(rows: TraceRows, *, name: str, model: str, dialect: str | None = None) -> str:
    """The profile as YAML, with comments on the fit.  `dialect`: chat, completion or generate; None: tensors.  Raises LoadgenError when there are too few rows."""
    known = [(at, kind) for at, kind in enumerate(rows.kinds) if (rows.kind == at).any()]
    parts = [(kind, rows.kind == at) for at, kind in known] or [("trace", np.ones(len(rows.kind), np.bool_))]
    for kind, mine in parts:
        if (n := int(mine.sum())) < _FEWEST_ROWS:
            raise LoadgenError(
                f"{n} rows of kind {kind}: too few for a fit that shows no single row; allowed: {_FEWEST_ROWS} or more"
            )
    fits = [fit_kind(kind, rows.length[mine], rows.output[mine]) for kind, mine in parts]
    rate = None if rows.due_ns is None else fit_rate(rows.due_ns)
    return _text(name, model, dialect, len(rows.kind), fits, rate)


def fit_rate(due_ns: _Ints) -> Rate:
    """Constant rates over a trace's span (its last gap, the mean one, included) and the gaps' burstiness."""
    n = len(due_ns)
    span = float(due_ns[-1]) * n / max(n - 1, 1) or 1e9
    edges = _edges(due_ns, span)
    count = np.histogram(due_ns, edges)[0]
    scatter = max(_burstiness(due_ns, edges, count)[0], 1.0)
    edges, count = _merged(edges, count, scatter)
    burstiness, gaps = _burstiness(due_ns, edges, count)
    twentieths = np.linspace(0.0, span, 21)
    seen = np.histogram(due_ns, twentieths)[0]
    expected = np.diff(np.interp(twentieths, edges, np.concatenate(([0], np.cumsum(count)))))
    return Rate(
        width_ns=np.diff(edges),
        count=count,
        burstiness=burstiness,
        rate_error=float(np.abs(seen - expected).mean() / seen.mean()),
        gap_ks=_gap_ks(gaps, burstiness),
    )


def _edges(due_ns: _Ints, span: float) -> _Reals:
    """Equal stretches, and the ends of long silences, to a thousandth of the span."""
    pieces = min(max(len(due_ns) // _ROWS_A_STRETCH, 1), _MOST_STRETCHES)
    gaps, grain = np.diff(due_ns), span / 1000
    long = np.flatnonzero(gaps > max(_SILENCE * span / len(due_ns), 3 * grain))
    long = long[np.argsort(gaps[long])[-_MOST_STRETCHES:]]
    begins = grain * np.ceil(due_ns[long] / grain + 1e-9)
    ends = grain * np.floor(due_ns[long + 1] / grain)
    equal = np.linspace(0.0, span, pieces + 1)
    inside = ((equal[:, None] > begins) & (equal[:, None] < ends)).any(axis=1)
    return np.unique(np.concatenate([equal[~inside], begins, ends]))


def _burstiness(due_ns: _Ints, edges: _Reals, count: _Ints) -> tuple[float, _Reals]:
    """Variance over squared mean of the gaps on the axis of expected arrivals, and these gaps."""
    gaps = np.diff(np.interp(due_ns, edges, np.concatenate(([0], np.cumsum(count)))))
    if len(gaps) < 2 or not gaps.any():  # noqa: PLR2004 - a variance needs two
        return 1.0, gaps
    return float(gaps.var(ddof=1) / gaps.mean() ** 2), gaps


def _merged(edges: _Reals, count: _Ints, scatter: float) -> tuple[_Reals, _Ints]:
    """Joins neighbours whose rates differ by less than chance makes them, the closest first."""
    at, held = list(edges), list(count)
    while len(held) > 1:
        width = np.diff(at)
        rate, error = np.array(held) / width, np.sqrt(scatter * np.maximum(held, 1)) / width
        silent = (np.array(held) == 0) & (width * sum(held) > _SILENCE * (at[-1] - at[0]))
        apart = np.abs(np.diff(rate)) / np.hypot(error[1:], error[:-1])
        apart[silent[1:] != silent[:-1]] = np.inf
        first = int(np.argmin(apart))
        if apart[first] > _ALIKE:
            break
        held[first : first + 2] = [held[first] + held[first + 1]]
        del at[first + 1]
    return np.array(at), np.array(held)


def _gap_ks(gaps: _Reals, burstiness: float) -> float:
    if len(gaps) == 0 or burstiness < _EVEN:
        return 0.0
    from scipy.special import gammainc

    values = np.sort(gaps / (gaps.mean() or 1.0))
    law = gammainc(1 / burstiness, values / burstiness)
    n = len(values)
    after, before = np.arange(1, n + 1) / n, np.arange(n) / n
    return float(np.maximum(np.abs(law - after), np.abs(law - before)).max())


def fit_kind(name: str, length: npt.NDArray[np.int32], output: npt.NDArray[np.int32]) -> KindFit:
    """Histograms of what is known (>= 0) of lengths, or pairs where they rise or fall together."""
    both = (length >= 0) & (output >= 0)
    correlation = _rank_correlation(length[both], output[both])
    bars_in, bars_out = bars(length[length >= 0], _BARS), bars(output[output >= 0], _BARS)
    pairs = _pairs(length[both], output[both]) if abs(correlation) >= _TOGETHER and both.all() else ()
    shown_in = tuple((a, a, n) for a, _, n in pairs) or bars_in
    shown_out = tuple((b, b, n) for _, b, n in pairs) or bars_out
    return KindFit(
        name=name,
        rows=len(length),
        length=bars_in,
        output=bars_out,
        pairs=pairs,
        correlation=correlation,
        length_ks=ks(length[length >= 0], shown_in),
        output_ks=ks(output[output >= 0], shown_out),
    )


def bars(values: npt.NDArray[np.integer], most: int) -> tuple[Bar, ...]:
    """Ranges of whole numbers that hold about equally many values, each at least FEWEST; none overlap."""
    if len(values) < FEWEST:
        return ()
    distinct, counts = np.unique(values, return_counts=True)
    enough = max(FEWEST, math.ceil(len(values) / most))
    found: list[list[int]] = []
    open_ = False
    for value, count in zip(distinct.tolist(), counts.tolist(), strict=True):
        if open_ and (count < enough or found[-1][2] < FEWEST):
            found[-1][1:] = [value, found[-1][2] + count]
        else:  # a value that fills a bar has its own
            found.append([value, value, count])
        open_ = found[-1][2] < enough
    if len(found) > 1 and found[-1][2] < FEWEST:
        _, high, count = found.pop()
        found[-1][1:] = [high, found[-1][2] + count]
    if found[0][0] < found[0][1]:
        found[0][0] = _rounded(found[0][0], up=False)
    if found[-1][0] < found[-1][1]:
        found[-1][1] = _rounded(found[-1][1], up=True)
    return tuple((low, high, count) for low, high, count in found)


def _rounded(value: int, *, up: bool) -> int:
    """To two significant digits."""
    unit: int = 10 ** max(len(str(value)) - 2, 0)
    units = -(-value // unit) if up else value // unit
    return max(units, 1) * unit


def _pairs(
    length: npt.NDArray[np.integer], output: npt.NDArray[np.integer]
) -> tuple[tuple[int, int, int], ...]:
    """Means of cells: bars of lengths in, each cut into bars of lengths out."""
    found = []
    for low, high, _ in bars(length, _PAIRED_BARS):
        mine = (length >= low) & (length <= high)
        ins, outs = length[mine], output[mine]
        for bottom, top, _ in bars(outs, _PAIRED_OUT):
            cell = (outs >= bottom) & (outs <= top)
            found.append((round(float(ins[cell].mean())), round(float(outs[cell].mean())), int(cell.sum())))
    return tuple(found)


def _rank_correlation(a: npt.NDArray[np.integer], b: npt.NDArray[np.integer]) -> float:
    """Spearman's, ties at their mean rank; 0 where one does not vary."""
    if len(a) < _FEWEST_ROWS or (a == a[0]).all() or (b == b[0]).all():
        return 0.0
    return float(np.corrcoef(_ranks(a), _ranks(b))[0, 1])


def _ranks(values: npt.NDArray[np.integer]) -> _Reals:
    _, index, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: _Reals = (last - (counts - 1) / 2)[index]
    return ranks


def ks(values: npt.NDArray[np.integer], law: Sequence[Bar]) -> float:
    """The largest distance between the distribution of values and that of bars, at any whole number."""
    if not law or not len(values):
        return 0.0
    low, high, weight = (np.array(column, dtype=np.float64) for column in zip(*law, strict=True))
    at = np.unique(np.concatenate([values, values - 1, low, high, low - 1]))
    ordered = np.sort(values)
    seen = np.searchsorted(ordered, at, side="right") / len(ordered)
    told = np.zeros(len(at))
    for one, other, share in zip(low, high, weight / weight.sum(), strict=True):
        told += share * np.clip((at - one + 1) / (other - one + 1), 0.0, 1.0)
    return float(np.abs(seen - told).max())


def _text(
    name: str, model: str, dialect: str | None, n: int, fits: Sequence[KindFit], rate: Rate | None
) -> str:
    lines = [
        f"# Fitted to a trace of {n:,} requests by `loadgen profile synth`; no row of it is in here.",
        "#",
    ]
    lines += _quality(fits, rate)
    lines += [f"name: {json.dumps(name)}", "kinds:"]
    for fit in fits:
        lines += [f"  {fit.name}:", f"    model: {json.dumps(model)}"]
        lines += [f"    {dialect}: {{}}"] if dialect else []
        lines += [f"    weight: {fit.rows / n:.6g}"] if len(fits) > 1 else []
        if fit.pairs:
            lines.append("    lengths:")
            lines += [f"      - {{in: {a}, out: {b}, weight: {rows}}}" for a, b, rows in fit.pairs]
        else:
            lines += _law("length", fit.length) + _law("output", fit.output)
    lines += ["phases:", "  - name: fitted"]
    if rate is None:
        return (
            "\n".join([*lines, f"    closed: {{users: 1, requests: {n}}}  # the trace has no times"]) + "\n"
        )
    lines += ["    open:", f"      arrivals: {_arrivals(rate, n)}", "      rate:"]
    for width, count in zip(rate.width_ns.tolist(), rate.count.tolist(), strict=True):
        lines.append(f"        - {{duration: {_seconds(width)}, at: {count / (width * 1e-9):.6g}/s}}")
    return "\n".join(lines) + "\n"


def _quality(fits: Sequence[KindFit], rate: Rate | None) -> list[str]:
    lines = []
    if rate is not None:
        stretches, off = len(rate.count), f"{rate.rate_error:.1%}"
        lines.append(f"# rate: {stretches} stretches; twentieths of the span are off by {off} on average")
        left = f"variance / mean^2 {rate.burstiness:.3g} after removing the rate"
        lines.append(f"# gaps: {left}; KS distance to the law {rate.gap_ks:.3f}")
    for fit in fits:
        form = "pairs" if fit.pairs else "each by itself"
        lines.append(
            f"# lengths of {fit.name}: {form} (rank correlation {fit.correlation:.2f}); KS distance in "
            f"{fit.length_ks:.3f}, out {fit.output_ks:.3f}"
        )
    return lines


def _law(key: str, law: Sequence[Bar]) -> list[str]:
    if not law:
        return []
    if len(law) == 1 and law[0][0] == law[0][1]:
        return [f"    {key}: {law[0][0]}"]
    lines = [f"    {key}:", "      histogram:"]
    for low, high, rows in law:
        place = f"at: {low}" if low == high else f"from: {low}, to: {high}"
        lines.append(f"        - {{{place}, weight: {rows}}}")
    return lines


def _arrivals(rate: Rate, n: int) -> str:
    """Poisson unless the gaps tell otherwise by more than chance: the error of their burstiness is sqrt(8 / n)."""
    if rate.burstiness < _EVEN:
        return "uniform"
    if abs(rate.burstiness - 1) <= max(3 * math.sqrt(8 / n), 0.05):
        return "poisson"
    burstiness = min(max(rate.burstiness, _LEAST_BURSTINESS), _MOST_BURSTINESS)
    return f"{{gamma: {{burstiness: {burstiness:.4g}}}}}"


def _seconds(ns: float) -> str:
    return f"{max(round(ns), 1)}ns" if ns < 1e9 else f"{ns / 1e9:.9g}s"  # noqa: PLR2004 - a second
