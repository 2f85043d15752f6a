"""The times of one request, each by the name that objectives give it.

It must not know what is done with them.
"""

import numpy as np

from loadgen.analysis.columns import Ints
from loadgen.analysis.frame import Bools, Frame

OF_STREAMS = ("ttft", "ttft from sent", "first content", "first content from sent", "tpot")


def measured(frame: Frame, metric: str) -> tuple[Ints, Bools]:
    """The time of each row, and where it is known; whatever became of the request."""
    if metric in ("latency", "service", "lag"):
        values: Ints = getattr(frame, f"{metric}_ns")
        return values, np.ones(len(frame), np.bool_) if metric == "latency" else frame.sent
    if frame.columns.streams is None:
        return np.zeros(len(frame), np.int64), np.zeros(len(frame), np.bool_)
    if metric == "tpot":
        out, first = frame.stream("tokens_out"), frame.stream("first_token_ns")
        many = (out > 1) & (frame.stream("chunks") > 1) & (first >= 0)
        took = frame.stream("last_token_ns") - first
        return np.rint(took / np.maximum(out - 1, 1)).astype(np.int64), many
    stamp = frame.stream("first_content_ns" if metric.startswith("first content") else "first_token_ns")
    start = frame.sent_ns if metric.endswith("from sent") else frame.due_ns
    known = (stamp >= 0) & frame.sent
    return np.where(known, stamp - start, 0), known
