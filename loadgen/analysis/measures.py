"""The times of one request, each by the name that objectives give it; and whether its answer stopped short."""

import numpy as np

from loadgen.analysis.columns import Ints
from loadgen.analysis.frame import Bools, Frame
from loadgen.analysis.streams import SOURCES
from loadgen.wire.finish import is_length

OF_STREAMS = ("ttft", "ttft from sent", "first content", "first content from sent", "tpot")


def measured(frame: Frame, metric: str) -> tuple[Ints, Bools]:
    """The time of each row, and where it is known; whatever became of the request."""
    if metric in ("latency", "service", "lag"):
        values: Ints = getattr(frame, f"{metric}_ns")
        return values, np.ones(len(frame), np.bool_) if metric == "latency" else frame.sent
    if frame.columns.streams is None:
        return np.zeros(len(frame), np.int64), np.zeros(len(frame), np.bool_)
    if metric == "tpot":
        return _time_per_token(frame)
    stamp = frame.stream("first_content_ns" if metric.startswith("first content") else "first_token_ns")
    start = frame.sent_ns if metric.endswith("from sent") else frame.due_ns
    known = (stamp >= 0) & frame.sent
    return np.where(known, stamp - start, 0), known


def _time_per_token(frame: Frame) -> tuple[Ints, Bools]:
    """TPOT: of each choice (last - first chunk) / (tokens - 1), weighted by these tokens.

    Usage counts the choices together, so each has the share of the tokens that it has of the chunks.  Tokens that the
    answer did not show (hidden reasoning) came before the first chunk and are none of these.
    """
    chunks, choices = frame.stream("timed_chunks"), frame.stream("timed_choices")
    shown = frame.stream("tokens_out") - np.maximum(frame.stream("unseen"), 0)
    tokens = shown * (chunks / np.maximum(frame.stream("chunks"), 1))
    known = (choices > 0) & (tokens > choices)
    took = frame.stream("token_time_ns") / np.where(known, tokens - choices, 1)
    return np.rint(took).astype(np.int64), known


def stopped_short(frame: Frame) -> Bools:
    """Successes with fewer tokens than the request allows (its min_tokens, or its max_tokens with ignore_eos).

    Where the server did not count them (a chunk may hold several, a tokenizer cuts a text in its own way), only those
    that say they ended for another reason than their length.
    """
    streams = frame.columns.streams
    if streams is None:
        return np.zeros(len(frame), np.bool_)
    out, least, finish = frame.stream("tokens_out"), frame.stream("min_tokens"), frame.stream("finish")
    by_length = [place for place, reason in enumerate(streams.finishes) if is_length(reason)]
    sure = told_by_usage(frame) | ((finish >= 0) & ~np.isin(finish, by_length))
    return np.asarray(frame.ok & (out >= 0) & (out < least) & sure, np.bool_)


def tokens_in(frame: Frame) -> Ints:
    """As the server counted them, else as planned; NEVER where neither is known.  Only of a run that has streams."""
    told = frame.stream("tokens_in").astype(np.int64)
    return np.where(told >= 0, told, frame.length)


def lengths(frame: Frame, metric: str) -> Ints:
    """The length by which a metric is told apart: tokens in for times of streams, else the length that was sent."""
    if metric in OF_STREAMS and frame.columns.streams is not None:
        return tokens_in(frame)
    return frame.length.astype(np.int64)


def told_by_usage(frame: Frame) -> Bools:
    """Whose tokens out are the server's own count; only of a run that has streams."""
    return np.asarray(frame.stream("source") == SOURCES.index("usage"), np.bool_)


def never_seen(frame: Frame) -> Bools:
    """Whose usage told of tokens of which none was seen."""
    if frame.columns.streams is None:
        return np.zeros(len(frame), np.bool_)
    return np.asarray(frame.stream("unseen") > 0, np.bool_)
