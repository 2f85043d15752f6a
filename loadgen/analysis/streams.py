"""streams.arrow, the stamps of answers that came in pieces, as columns beside those of the records.

Each stream is laid beside its record (same phase, same place in it); one without a record, in a run that was
killed, is left out, since nobody knows how it ended.  Stamps of single chunks are read a batch at a time and
not kept: of the successes' chunks the gaps are tallied and the tokens are counted by time.  This module must not
know what a figure is called.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from loadgen.analysis.percentiles import Tally

Ints = npt.NDArray[np.int64]
Small = npt.NDArray[np.signedinteger[Any]]
Bools = npt.NDArray[np.bool_]
NEVER = -1  # stands for null and for "there is none"
SOURCES = ("", "usage", "tokenizer", "chunks")  # where a number of tokens comes from
BIN_NS = 100_000_000
_STAMPS = ("first_token_ns", "first_content_ns", "last_token_ns")
_NUMBERS = (
    "chunks", "tokens_in", "tokens_out", "cached_tokens", "max_tokens", "min_tokens", "unseen",
)  # fmt: skip
_TIMED = ("token_time_ns", "timed_chunks", "timed_choices")


@dataclass(frozen=True, slots=True)
class StreamColumns:
    """One entry a record; `chunks` is NEVER where there was no stream.  `source` indexes SOURCES, `finish`
    indexes `finishes`.  `token_time_ns` is the time from the first to the last chunk of each choice, summed over its
    `timed_choices` of two or more chunks, which have `timed_chunks` in all.  Of the successes: `gaps` between chunks by (phase, kind), and `tokens` by phase in
    steps of BIN_NS from the start of the run, those of one stream evenly over its chunks.
    """

    first_token_ns: Ints
    first_content_ns: Ints
    last_token_ns: Ints
    chunks: Small
    tokens_in: Small
    tokens_out: Small
    cached_tokens: Small
    max_tokens: Small
    min_tokens: Small
    unseen: Small
    token_time_ns: Ints
    timed_chunks: Small
    timed_choices: Small
    source: Small
    finish: Small
    finishes: list[str] = field(default_factory=list)
    gaps: dict[tuple[int, int], Tally] = field(default_factory=dict)
    tokens: dict[int, npt.NDArray[np.float64]] = field(default_factory=dict)

    def part(self, start: int, stop: int) -> "StreamColumns":
        """Some rows, sharing their memory; the tallies stay whole."""
        columns = {
            name: getattr(self, name)[start:stop]
            for name in (*_STAMPS, *_NUMBERS, *_TIMED, "source", "finish")
        }
        return StreamColumns(**columns, finishes=self.finishes, gaps=self.gaps, tokens=self.tokens)


def read_streams(
    batches: Iterable[Any], phases: Mapping[str, int], phase: Small, kind: Small, seq: Small, ok: Bools
) -> StreamColumns | None:
    """From batches of streamfile.schema, beside columns of the records; None when there is no stream at all."""
    found: StreamColumns | None = None
    n = seq.size
    order, ordered = np.zeros(0, np.intp), np.zeros(0, np.int64)
    for batch in batches:
        if found is None:
            found, keys = _none(n), _keys(phase, seq)
            order = np.argsort(keys, kind="stable")
            ordered = keys[order]
        names = batch.column("phase")
        places = np.array([phases.get(text, NEVER) for text in names.dictionary.to_pylist()] + [NEVER])
        of = places[names.indices.fill_null(len(places) - 1).to_numpy(zero_copy_only=False)]
        wanted = _keys(of, batch.column("seq").to_numpy(zero_copy_only=False))
        at = np.minimum(np.searchsorted(ordered, wanted), max(0, n - 1))
        here = np.flatnonzero(ordered[at] == wanted) if n else np.zeros(0, np.intp)
        rows = order[at[here]]
        for name in (*_STAMPS, *_NUMBERS):
            if name in batch.schema.names:  # older runs have fewer
                values = batch.column(name).fill_null(NEVER).to_numpy(zero_copy_only=False)
                getattr(found, name)[rows] = values[here]
        found.source[rows] = _coded(batch.column("source"), list(SOURCES), 0)[here]
        found.finish[rows] = _coded(batch.column("finish"), found.finishes, NEVER)[here]
        row_of = np.full(len(batch), NEVER, np.int64)
        row_of[here] = rows
        parts = _parts(batch, row_of)
        _times(found, parts)
        _chunks(found, parts, (phase, kind, ok))
    return found


def _none(n: int) -> StreamColumns:
    stamps = {name: np.full(n, NEVER, np.int64) for name in _STAMPS}
    numbers = {name: np.full(n, NEVER, np.int32) for name in _NUMBERS}
    timed = {"token_time_ns": np.zeros(n, np.int64), "timed_chunks": np.zeros(n, np.int32),
             "timed_choices": np.zeros(n, np.int16)}  # fmt: skip
    columns: dict[str, Any] = stamps | numbers | timed
    return StreamColumns(**columns, source=np.zeros(n, np.int8), finish=np.full(n, NEVER, np.int16))


def _keys(phase: Small, seq: Small) -> Ints:
    return (phase.astype(np.int64) << 48) + seq


def _coded(column: Any, texts: list[str], otherwise: int) -> Ints:
    """Texts as places in `texts`, which grows by those seen for the first time; "" and null are `otherwise`."""
    coded = column.dictionary_encode()
    places = []
    for text in coded.dictionary.to_pylist():
        if text and text not in texts:
            texts.append(text)
        places.append(texts.index(text) if text else otherwise)
    codes = coded.indices.fill_null(len(places)).to_numpy(zero_copy_only=False)
    found: Ints = np.array([*places, otherwise], dtype=np.int64)[codes]
    return found


@dataclass(frozen=True, slots=True)
class _Parts:
    """The choices of a batch's streams: the row each belongs to, and where its stamps begin and how many they are."""

    row: Ints
    begin: Ints
    size: Ints
    stamps: Ints

    def where(self, keep: Bools) -> "_Parts":
        return _Parts(self.row[keep], self.begin[keep], self.size[keep], self.stamps)


def _parts(batch: Any, row_of: Ints) -> _Parts:
    """`row_of` is the row of each stream of the batch, NEVER where it has no record."""
    column = batch.column("chunk_ns")
    offsets = column.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    row, size = row_of, np.diff(offsets)
    at = batch.schema.get_field_index("choice_chunks")  # older runs have none
    if at >= 0 and batch.column(at).null_count < len(batch):
        choices = batch.column(at)
        several = choices.is_valid().to_numpy(zero_copy_only=False)
        number = np.where(several, choices.value_lengths().fill_null(1).to_numpy(zero_copy_only=False), 1)
        of_several, whole = np.repeat(several, number), size
        row, size = np.repeat(row_of, number), np.empty(int(number.sum()), np.int64)
        size[of_several] = choices.flatten().to_numpy(zero_copy_only=False)
        size[~of_several] = whole[~several]
    parts = _Parts(
        row, offsets[0] + np.cumsum(size) - size, size, column.values.to_numpy(zero_copy_only=False)
    )
    return parts.where(row >= 0)


def _times(found: StreamColumns, parts: _Parts) -> None:
    """The time between the tokens of each choice; stamps of two choices are never subtracted."""
    timed = parts.where(parts.size > 1)
    took = timed.stamps[timed.begin + timed.size - 1] - timed.stamps[timed.begin]
    np.add.at(found.token_time_ns, timed.row, took)
    np.add.at(found.timed_chunks, timed.row, timed.size.astype(np.int32))
    np.add.at(found.timed_choices, timed.row, np.int16(1))


def _chunks(found: StreamColumns, parts: _Parts, beside: tuple[Small, Small, Bools]) -> None:
    """Tallies the gaps and the tokens of a batch's successes."""
    phase, kind, ok = beside
    parts = parts.where(ok[parts.row])
    rows, sizes = parts.row, parts.size
    total = int(sizes.sum())
    if total == 0:
        return
    starts = np.cumsum(sizes) - sizes
    picked = np.arange(total) - np.repeat(
        starts - parts.begin, sizes
    )  # the chunks of these choices, one after the other
    stamps = parts.stamps[picked]
    of = np.repeat(np.arange(rows.size), sizes)
    within = of[1:] == of[:-1]
    gaps, of_gap = np.maximum(np.diff(stamps)[within], 0), of[1:][within]
    groups = phase[rows].astype(np.int64) * (1 << 16) + kind[rows]
    for group in np.unique(groups).tolist():
        tally = found.gaps.setdefault((group >> 16, group & 0xFFFF), Tally())
        these = groups[of_gap] == group
        if these.any():
            tally.add(gaps[these], int(stamps[:-1][within][np.argmax(these)]))
    tokens = found.tokens_out[rows]
    weights = np.where(tokens > 0, tokens, 0) / np.maximum(found.chunks[rows], 1)
    for place in np.unique(phase[rows]).tolist():
        these = phase[rows][of] == place
        counted = np.bincount(stamps[these] // BIN_NS, weights=weights[of[these]])
        held = found.tokens.get(place, np.zeros(0))
        size = max(held.size, counted.size)
        found.tokens[place] = np.pad(held, (0, size - held.size)) + np.pad(counted, (0, size - counted.size))
