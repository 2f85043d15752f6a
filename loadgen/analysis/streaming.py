"""What answers that came in pieces come to: first tokens, gaps, time a token, tokens a second, goodput.

Definitions, of successes, from the stamps that were written when each chunk came:

* time to first token: from due (`ttft_ns`, as latency) and from sent (`ttft_from_sent_ns`, as others count it)
  to the first chunk that carries a token of any kind; first content: to the first of the answer proper.
  A token without visible text (a special one, half a character) is a token; first content is the first that shows.
* chunk gap: between two chunks of one choice that carry tokens.  It is no time a token: a chunk may hold several.
* time per output token (TPOT): (last - first chunk) / (tokens out - 1).  None for fewer than two tokens, and
  for a single chunk, which tells nothing of the time between its tokens.  Of several choices: the mean of theirs,
  weighted by their tokens (measures).
* output tokens/s of a user: a request's tokens out over the time from sent to its last chunk.
* tokens/s in total: each success counts its tokens by the share and over the span of analysis.rates.  Their peak
  is the most that came within a second, a stream's tokens laid evenly over its chunks; never below the mean.
* usage and chunks: in how many streams the server's usage counts other tokens than chunks came; tokens and what is
  divided by them rest on usage, first tokens and chunk gaps on chunks.  Unseen are those that usage tells and an answer did
  not show: all of them, or hidden reasoning; these are in no TPOT.
* output lengths: tokens that were asked (max_tokens) and delivered, of the answers that tell both; how many stopped
  short of what the request allows (min_tokens, ignore_eos).
* cached tokens: of tokens in, those that the server took from its prefix cache, where it tells them.
* tokens: as the server counted them, else as `tokens_from` says; tokens in else as they were planned.
* goodput: requests, of all that were judged, which succeeded within every bound that the objectives set on a
  time of one request (analysis.goodput).

A figure that cannot be measured is None with its n.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from loadgen.analysis.columns import Ints
from loadgen.analysis.frame import Bools, Frame
from loadgen.analysis.goodput import Bound, goodput
from loadgen.analysis.measures import measured, stopped_short, tokens_in, told_by_usage
from loadgen.analysis.percentiles import Tally, distribution
from loadgen.analysis.rates import Shares, per_s
from loadgen.analysis.streams import BIN_NS, SOURCES
from loadgen.histogram import nearest_rank

TIMES = {
    "ttft_ns": "ttft", "ttft_from_sent_ns": "ttft from sent", "first_content_ns": "first content",
    "first_content_from_sent_ns": "first content from sent", "tpot_ns": "tpot",
}  # fmt: skip
_PEAK_BINS = 10  # a second
_FINE = 1e6  # rates are sorted as whole millionths
_SLOW = {"p01": 0.01, "p10": 0.1, "p50": 0.5, "p90": 0.9}  # of rates the low ones are the bad ones


def streaming(
    frame: Frame, share: Shares, span_ns: int | None, kinds: list[dict[str, Any]], bounds: list[Bound]
) -> dict[str, Any]:
    """Of the rows of one phase, or of all measured ones; `share` and `span_ns` as in analysis.rates."""
    found = {**_core(frame), **_rates(frame, share, span_ns)}
    found["goodput"] = goodput(frame, share, span_ns, bounds)
    asked = frame.kind
    parts = {kind["name"]: frame.where(asked == place) for place, kind in enumerate(kinds)}
    found["by_kind"] = {name: _core(part) for name, part in parts.items() if part.streamed.any()}
    found["by_length"] = _by_length(frame)
    return found


def _core(frame: Frame) -> dict[str, Any]:
    ok = frame.where(frame.ok & frame.streamed)
    out = ok.stream("tokens_out")
    return {
        "n": len(ok),
        **{key: distribution(_known(ok, metric)) for key, metric in TIMES.items()},
        "chunk_gap_ns": gaps(frame).distribution(),
        "chunks": int(ok.stream("chunks").sum()),
        "tokens_in": _numbers(tokens_in(ok)),
        "tokens_out": _numbers(out),
        "tokens_from": {name or "unknown": int(np.count_nonzero(ok.stream("source")[out >= 0] == place))
                        if name else int(np.count_nonzero(out < 0)) for place, name in enumerate(SOURCES)},
        "output_tokens_per_s_per_user": _per_user(ok),
        "finish": _finishes(ok),
        "usage_and_chunks": _usage_and_chunks(ok),
        "unseen_tokens": _positive(ok.stream("unseen")),
        "output_lengths": _output_lengths(ok),
        "cached_tokens": _cached(ok),
        "planned_cancels": int(np.count_nonzero(frame.planned_cancel)),
    }  # fmt: skip


def _known(frame: Frame, metric: str) -> Ints:
    values, known = measured(frame, metric)
    return values[known]


def gaps(frame: Frame) -> Tally:
    """Between the chunks of the successes of a frame that was chosen by phase and kind only."""
    streams = frame.columns.streams
    if streams is None or not len(frame):
        return Tally()
    pairs = np.unique(frame.phase.astype(np.int64) * (1 << 16) + frame.kind).tolist()
    tallies = (streams.gaps.get((pair >> 16, pair & 0xFFFF)) for pair in pairs)
    return Tally.merged(tally for tally in tallies if tally is not None)


def _numbers(values: npt.NDArray[Any]) -> dict[str, Any]:
    """n, sum, mean and largest of those that are known."""
    known = values[values >= 0]
    if known.size == 0:
        return {"n": 0, "sum": None, "mean": None, "max": None}
    total = int(known.sum(dtype=np.int64))
    return {"n": int(known.size), "sum": total, "mean": total / known.size, "max": int(known.max())}


def _positive(values: npt.NDArray[Any]) -> dict[str, int]:
    """N and sum of those that are more than none."""
    known = values[values > 0]
    return {"n": int(known.size), "sum": int(known.sum(dtype=np.int64))}


def _usage_and_chunks(ok: Frame) -> dict[str, int]:
    """Of how many both are known, how many differ, and the tokens and chunks of those that do."""
    tokens, chunks = ok.stream("tokens_out"), ok.stream("chunks")
    both = told_by_usage(ok) & (chunks > 0)
    differ = both & (tokens != chunks)
    return {
        "n": int(np.count_nonzero(both)),
        "differ": int(np.count_nonzero(differ)),
        "tokens": int(tokens[differ].sum(dtype=np.int64)),
        "chunks": int(chunks[differ].sum(dtype=np.int64)),
    }


def _output_lengths(ok: Frame) -> dict[str, Any]:
    """Means, in tokens, of what was asked and delivered; how many were not to stop short, did, and went beyond."""
    out, most, least = (ok.stream(name) for name in ("tokens_out", "max_tokens", "min_tokens"))
    both = (out >= 0) & (most >= 0)
    n = int(np.count_nonzero(both))
    short = stopped_short(ok)
    return {
        "n": n,
        "asked_mean": float(most[both].mean()) if n else None,
        "delivered_mean": float(out[both].mean()) if n else None,
        "bound": int(np.count_nonzero((out >= 0) & (least >= 0))),
        "short": int(np.count_nonzero(short)),
        "short_mean": float(out[short].mean()) if short.any() else None,
        "beyond": int(np.count_nonzero(both & (out > most) & told_by_usage(ok))),
    }


def _cached(ok: Frame) -> dict[str, Any]:
    """N that tell it, their cached tokens, these as a share of their tokens in, and of how many it was more than half."""
    cached, into = ok.stream("cached_tokens").astype(np.int64), tokens_in(ok)
    known = (cached >= 0) & (into > 0)
    cached, into = np.minimum(cached, into)[known], into[known]
    n, total = int(cached.size), int(into.sum())
    return {
        "n": n,
        "sum": int(cached.sum()) if n else None,
        "share": int(cached.sum()) / total if total else None,
        "mostly": int(np.count_nonzero(2 * cached > into)),
    }


def _per_user(ok: Frame) -> dict[str, Any]:
    out, took = ok.stream("tokens_out"), ok.stream("last_token_ns") - ok.sent_ns
    usable = (out > 0) & (ok.stream("last_token_ns") >= 0) & ok.sent & (took > 0)
    rates = np.sort(np.rint(out[usable] * 1e9 * _FINE / took[usable]).astype(np.int64))
    n = int(rates.size)
    if n == 0:
        return {"n": 0, "mean": None, **dict.fromkeys(_SLOW), "max": None}
    points = {name: int(nearest_rank(rates, q)) / _FINE for name, q in _SLOW.items()}
    return {"n": n, "mean": float(rates.mean()) / _FINE, **points, "max": int(rates[-1]) / _FINE}


def _finishes(ok: Frame) -> dict[str, int]:
    streams = ok.columns.streams
    places, numbers = np.unique(ok.stream("finish"), return_counts=True)
    names = streams.finishes if streams is not None else []
    return {names[place]: n for place, n in zip(places.tolist(), numbers.tolist(), strict=True) if place >= 0}


def token_rates(frame: Frame, share: Shares, span_ns: int | None) -> dict[str, tuple[float | None, int]]:
    """Tokens a second over the load, as analysis.rates counts successes, with how many told theirs."""
    found = {}
    for name, tokens in (
        ("output tokens/s", frame.stream("tokens_out")),
        ("input tokens/s", tokens_in(frame)),
    ):
        known = frame.ok & frame.streamed & (tokens >= 0)
        rate = per_s(float((share * known * np.maximum(tokens, 0)).sum()), span_ns)
        n = int(np.count_nonzero(known))
        found[name] = (rate if n else None, n)
    return found


def _rates(frame: Frame, share: Shares, span_ns: int | None) -> dict[str, Any]:
    found = token_rates(frame, share, span_ns)
    mean = found["output tokens/s"][0]
    return {
        "output_tokens_per_s": mean,
        "peak_output_tokens_per_s": None if mean is None else max(mean, _peak(frame, span_ns)),
        "input_tokens_per_s": found["input tokens/s"][0],
    }


def _peak(frame: Frame, span_ns: int | None) -> float:
    """The most tokens within a second, or within the span when it is shorter, of any phase of the frame."""
    streams = frame.columns.streams
    if streams is None or not span_ns:
        return 0.0
    width = int(min(_PEAK_BINS, max(1, span_ns // BIN_NS)))
    most = 0.0
    for place in np.unique(frame.phase).tolist():
        counted = streams.tokens.get(place)
        if counted is not None and counted.size:
            reached = np.cumsum(np.concatenate([np.zeros(width), counted, np.zeros(width)]))
            most = max(most, float((reached[width:] - reached[:-width]).max()))
    return most * 1e9 / (width * BIN_NS)


def _by_length(frame: Frame) -> list[dict[str, Any]]:
    """Successes by tokens in, in the buckets of figures.by_length."""
    ok = frame.where(frame.ok & frame.streamed)
    into = tokens_in(ok)
    ok, into = ok.where(into >= 0), into[into >= 0]
    edges = np.ceil(np.log2(np.maximum(into, 1))).astype(np.int8)
    found = []
    for edge in np.flatnonzero(np.bincount(edges)).tolist():
        these: Bools = edges == edge
        part = ok.where(these)
        keys = ("ttft_ns", "ttft_from_sent_ns", "tpot_ns")
        low = 0 if edge == 0 and int(into[these].min()) == 0 else (1 << edge) // 2 + 1
        figures = {key: distribution(_known(part, TIMES[key])) for key in keys}
        found.append({"from": low, "to": 1 << edge, "n": len(part), **figures})
    return found
