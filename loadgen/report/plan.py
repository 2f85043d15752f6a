"""A plan as a person sees it before anything is sent, at 100 columns; and as data for scripts.

Everything counted comes from the plan (loadgen.planstory); the profile adds what was asked for.  This module
must not plan, nor know where its lines are printed.
"""

from __future__ import annotations

import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from loadgen.planstory import COLUMNS
from loadgen.report.words import burst_line
from loadgen.schedule import rate_curve
from loadgen.units import show_ns

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from loadgen.planstory import PhaseStory, Spread
    from loadgen.records import Plan
    from loadgen.traffic.phases import Phase
    from loadgen.traffic.profile import Kind, TrafficProfile

WIDTH = 100
_BARS = "▁▂▃▄▅▆▇█"


def plan_lines(profile: TrafficProfile, plan: Plan, stories: Sequence[PhaseStory]) -> list[str]:
    """Phases with their arrivals and lengths, kinds, conditions and objectives; no line exceeds WIDTH."""
    lines = [f"{profile.name}  seed {plan.seed}  sha256 {profile.sha256[:12]}"]
    for phase, story, planned in zip(profile.phases, stories, plan.phases, strict=True):
        lines += ["", story.name + ("" if story.measured else "  (warm-up, not measured)")]
        said = (planned.facts or {}).get("said", ())
        of_loop = _closed(story) if story.loop == "closed" else _open(phase, story)
        lines += [f"  {line}" for line in (*of_loop, *said, *_lengths(story))]
    weights = sum(kind.weight for kind in profile.kinds.values())
    lines += ["", *(_kind(kind, kind.weight / weights) for kind in profile.kinds.values())]
    if profile.cap is not None:
        lines.append(
            f"cap  {profile.cap.in_flight:,} in flight; when it is full, arrivals {_WHEN_FULL[profile.cap.when_full]}"
        )
    if profile.network is not None:
        lines.append(f"network  {profile.network.words}")
    lines += [f"objective  {objective.text}" for objective in profile.objectives]
    return [part for line in lines for part in _folded(line)]


_WHEN_FULL = {"wait": "wait, their latency running", "drop": "are dropped, and counted"}


def _folded(line: str) -> list[str]:
    """A line that is too long goes on below, further in."""
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    return (
        textwrap.wrap(line, WIDTH, subsequent_indent=indent, break_on_hyphens=False)
        if len(line) > WIDTH
        else [line]
    )


def _n(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _closed(story: PhaseStory) -> Iterator[str]:
    ends = [] if story.planned is None else [_n(story.planned, "request")]
    ends += [] if story.span_ns is None else [show_ns(story.span_ns)]
    think = f", {show_ns(story.think_ns)} between an answer and the next request" if story.think_ns else ""
    yield f"closed, {_n(story.users, 'user')}, until {' or '.join(ends)}{think}"


def _open(phase: Phase, story: PhaseStory) -> Iterator[str]:
    own = "a trace's times" if phase.open is None else str(phase.open.arrivals)
    counted = f"open, {own}: {_n(story.planned or 0, 'arrival')} in {show_ns(story.span_ns or 0)}"
    arrivals = story.arrivals
    if arrivals is None or not story.planned or story.column_counts is None or story.column_ns is None:
        yield counted
        return
    when = f"from {show_ns(arrivals.peak_at_ns)} on" if arrivals.peak_at_ns else "at the start"
    busiest = f"busiest {show_ns(arrivals.bin_ns)} {arrivals.peak_per_s:.4g}/s {when}"
    yield f"{counted}, mean {story.mean_per_s:.4g}/s, {busiest}"
    sent = [count / (story.column_ns * 1e-9) for count in story.column_counts]
    asked = asked_per_s(phase)
    top = max(*sent, *(asked or ()))
    yield f"arrivals  {sparkline(sent, top)}  {min(sent):.4g} to {max(sent):.4g}/s, {show_ns(story.column_ns)} a column"
    if asked is not None:
        yield f"asked     {sparkline(asked, top)}  {min(asked):.4g} to {max(asked):.4g}/s"
    yield burst_line(asdict(arrivals))
    if arrivals.share_an_instant:
        yield f"{_n(arrivals.share_an_instant, 'arrival')} ({arrivals.share_an_instant / story.planned:.1%}) share their instant with others"


def asked_per_s(phase: Phase) -> list[float] | None:
    """The rate asked for at the middle of each column; None where no rate is: a closed loop, a trace's own times."""
    if phase.open is None:
        return None
    step = phase.open.duration_ns / COLUMNS
    rates: list[float] = (
        rate_curve(phase.open.rate).rate_per_s([(i + 0.5) * step for i in range(COLUMNS)]).tolist()
    )
    return rates


def _lengths(story: PhaseStory) -> Iterator[str]:
    """Kinds as they come in this phase, where there is more than one, and their lengths."""
    several = len(story.kinds) > 1
    for name, kind in story.kinds.items():
        if several and kind.share:
            count = "" if kind.planned is None else f"{_n(kind.planned, 'request')}, "
            yield f"{name}  {count}{kind.share:.1%}"
        for way, spread in (("in ", kind.length), ("out", kind.output)):
            if spread is not None:
                yield f"{'  ' * several}length {way}  {_spread(spread)}"


def _spread(spread: Spread) -> str:
    if spread.min == spread.max:
        return f"always {spread.min:,}"
    widths = {b - a for a, b in zip(spread.edges, spread.edges[1:], strict=False)}
    wider = "  (bars widen)" if max(widths) > min(widths) + 1 else ""
    told = (
        f"min {spread.min:,}, P50 {spread.p50:,}, P90 {spread.p90:,}, P99 {spread.p99:,}, max {spread.max:,}"
    )
    return f"{sparkline(spread.counts)}  {told}{wider}"


def sparkline(values: Sequence[float], top: float | None = None) -> str:
    """A column of one to eight eighths a value, the largest, or `top`, filling it."""
    top = (max(values) if top is None else top) or 1.0
    return "".join(_BARS[min(round(value / top * 7), 7)] for value in values)


def dialect(kind: Kind) -> str:
    """How a kind is sent, in a word or two."""
    if kind.http is not None:
        return "HTTP"
    if kind.text is None:
        return "KServe v2 stream" if kind.stream else "KServe v2"
    name = "OpenAI chat" if kind.chat else "OpenAI completions" if kind.completion else "Triton generate"
    return f"{name}{', streamed' * kind.text.stream}"


def _kind(kind: Kind, share: float) -> str:
    subject = kind.subject if kind.http else f"model {kind.model}{':' * bool(kind.version)}{kind.version}"
    parts = [f"kind {kind.name}  {share:.1%} by weight  {dialect(kind)}", subject]
    parts += [f"batch {kind.batch}"] if kind.batch > 1 else []
    parts += [f"priority {kind.priority}"] if kind.priority is not None else []
    parts += [f"timeout {show_ns(kind.timeout_ns)}"]
    parts += (
        [f"dialogues of {kind.chat.turns} turns, {show_ns(kind.chat.think_ns)} apart"]
        if kind.chat and kind.chat.turns > 1
        else []
    )
    parts += [f"sequences of {kind.sequence.requests}"] if kind.sequence else []
    parts += (
        [f"{kind.cancel.share:.3g} of them cancelled {show_ns(kind.cancel.after_ns)} after sending"]
        if kind.cancel
        else []
    )
    return ", ".join(parts)


def plan_data(profile: TrafficProfile, plan: Plan, stories: Sequence[PhaseStory]) -> dict[str, Any]:
    """The same for scripts; times in ns, rates per s, shares of 1, lengths in tokens."""
    cap, network = profile.cap, profile.network
    return {
        "name": profile.name,
        "seed": plan.seed,
        "sha256": profile.sha256,
        "target": profile.target,
        "phases": [
            asdict(story) | {"asked_per_s": asked_per_s(phase), "trace": planned.facts}
            for story, phase, planned in zip(stories, profile.phases, plan.phases, strict=True)
        ],
        "kinds": {kind.name: _kind_data(kind) for kind in profile.kinds.values()},
        "cap": cap and cap.model_dump(),
        "network": network and network.model_dump(),
        "objectives": [objective.text for objective in profile.objectives],
    }


def _kind_data(kind: Kind) -> dict[str, Any]:
    return {
        "dialect": dialect(kind),
        "model": kind.model,
        "version": kind.version,
        "weight": kind.weight,
        "batch": kind.batch,
        "priority": kind.priority,
        "timeout_ns": kind.timeout_ns,
        "cancel": kind.cancel and {"share": kind.cancel.share, "after_ns": kind.cancel.after_ns},
        "turns": kind.chat.turns if kind.chat else 1,
        "think_ns": kind.chat.think_ns if kind.chat else 0,
        "sequence_requests": kind.sequence.requests if kind.sequence else 1,
    }
