"""What became of a trace, as data and as sentences: nothing that was left out or changed goes unsaid."""

from typing import Any

from loadgen.traffic.trace import PLAIN, Trace
from loadgen.traffic.traces.columns import Ints
from loadgen.traffic.traces.layouts import Layout
from loadgen.traffic.traces.select import Sieve
from loadgen.traffic.traces.sharegpt import BYTES_A_TOKEN
from loadgen.traffic.traces.source import Source
from loadgen.traffic.traces.timeline import Timeline, fullest
from loadgen.units import show_ns

_SHOWN_SEAMS = 20
_SHOWN_COLUMNS = 12


def facts_of(  # noqa: PLR0913 - the whole story at once
    trace: Trace,
    layout: Layout,
    source: Source,
    how: str,
    *,
    read: int,
    kept: int,
    stopped: str,
    sieve: Sieve,
    timeline: Timeline,
    trace_span_ns: int,
    due_ns: Ints | None,
    gaps_cut: int,
    gaps_cut_ns: int,
    others: list[str],
) -> dict[str, Any]:
    """JSON: counts by reason, times in ns, and `said`, one sentence a fact that a reader must know."""
    facts: dict[str, Any] = {
        "file": trace.file,
        "sha256": source.sha256(),
        "compression": source.compression,
        "format": layout.format,
        "recognised": trace.format is None,
        "unit": layout.unit,
        "lengths_from": _lengths_from(trace, layout),
        "rows_read": read,
        "rows_kept": kept,
        "dropped": {reason: n for reason, n in sorted(sieve.dropped.items()) if n},
        "changed": dict(sorted(sieve.changed.items())),
        "columns_unread": others,
        "stopped_at": stopped or None,
        "timed": due_ns is not None,
        "scale": trace.scale.model_dump(),
    }
    if due_ns is not None:
        facts |= {
            "seam_policy": timeline.policy,
            "seams": [
                {"row": trace.skip + row + 1, "before_ns": before, "after_ns": after}
                for row, before, after in timeline.seams[:_SHOWN_SEAMS]
            ],
            "late_rows": timeline.late,
            "latest_ns": timeline.latest_ns,
            "trace_span_ns": trace_span_ns,
            "span_ns": int(due_ns[-1]),
            "speed": trace.speed,
            "max_gap_ns": trace.max_gap_ns,
            "gaps_cut": gaps_cut,
            "gaps_cut_ns": gaps_cut_ns,
            "peak_per_s": fullest(due_ns, 10**9),
            "largest_burst": fullest(due_ns, 1),
        }
    return {**facts, "said": _sentences(facts, how, len(timeline.seams))}


def _lengths_from(trace: Trace, layout: Layout) -> str:
    if layout.format != "sharegpt":
        return "trace"
    return "tokenizer" if trace.tokenizer else f"estimate: UTF-8 bytes / {BYTES_A_TOKEN}"


def _sentences(facts: dict[str, Any], how: str, seams: int) -> list[str]:
    unit = (
        f", times in {facts['unit']}"
        if facts["unit"] and facts["timed"] and not facts["format"].endswith("_log")
        else ""
    )
    plain = ", by the columns named" if facts["format"] in PLAIN else ""
    said = [f"trace {facts['file']}: {facts['format']} ({how}){plain}{unit}"]
    lost = ", ".join(f"{reason}: {n:,}" for reason, n in facts["dropped"].items())
    said.append(
        f"{facts['rows_kept']:,} of {facts['rows_read']:,} rows read are replayed"
        + (f" (left out: {lost})" if lost else "")
    )
    said += [f"{n:,} row{'s' * (n > 1)}: {what}" for what, n in facts["changed"].items()]
    if others := facts["columns_unread"]:
        shown = ", ".join(others[:_SHOWN_COLUMNS]) + (", ..." if len(others) > _SHOWN_COLUMNS else "")
        said.append(f"columns that are not read: {shown}")
    if facts["lengths_from"] not in ("trace", "tokenizer"):
        said.append(f"lengths are an {facts['lengths_from']}")
    if facts["stopped_at"]:
        said.append(f"the file was read up to {_STOPPED[facts['stopped_at']]} only")
    if not facts["timed"]:
        return [*said, "it has no times: its rows are sent in file order, each when its turn comes"]
    if seams and facts["seam_policy"] == "concat":
        said.append(
            f"time falls back {seams:,} time{'s' * (seams > 1)}, first at row {facts['seams'][0]['row']:,}: "
            "another recording begins there and is replayed after the one before"
        )
    if facts["late_rows"]:
        said.append(
            f"rows that stood out of order, {facts['late_rows']:,}, by {show_ns(facts['latest_ns'])} at most: sorted"
        )
    if facts["max_gap_ns"] is not None:
        cut = f"{facts['gaps_cut']:,} were, {show_ns(facts['gaps_cut_ns'])} in all"
        said.append(f"silences are cut to {show_ns(facts['max_gap_ns'])} of trace time, before speed: {cut}")
    said.append(
        f"{show_ns(facts['trace_span_ns'])} of trace in {show_ns(facts['span_ns'])} (speed {facts['speed']:g}); fullest "
        f"second {facts['peak_per_s']:,} requests, at most {facts['largest_burst']:,} due at the same instant"
    )
    if facts["format"] == "nginx_log":
        said.append("nginx stamps whole seconds, and the end of a request, not its start")
    return said


_STOPPED = {
    "first": "the last row asked for",
    "seam": "its first seam",
    "to": "the end of the time asked for",
}
