"""`loadgen profile`: check a traffic profile, show what it will send, list its keys, fit one to a trace."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadgen.records import LoadgenError
from loadgen.units import show_ns

if TYPE_CHECKING:
    from loadgen.schedule import PhaseStory
    from loadgen.traffic.profile import Kind, Phase, TrafficProfile

app = typer.Typer(
    help="Check a traffic profile, show what it will send, list its keys, fit one to a trace.",
    no_args_is_help=True,
)

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 48
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_SAMPLE = 1000  # lengths that stand for a law

Files = Annotated[list[Path], typer.Argument(help="Profiles, YAML or JSON.", show_default=False)]
File = Annotated[Path, typer.Argument(help="A profile, YAML or JSON.", show_default=False)]
Seed = Annotated[int | None, typer.Option(help="Instead of the profile's own.", min=0)]
AsJson = Annotated[bool, typer.Option("--json", help="For scripts.")]


@app.command()
def lint(files: Files) -> None:
    """Read profiles and say OK, or every line that is wrong (exit 2).

    Example: loadgen profile lint traffic_profiles/*.yaml
    """
    from loadgen.schedule import plan
    from loadgen.traffic.profile import load_profile

    bad = 0
    for file in files:
        try:
            profile = load_profile(file)
            planned = sum(len(phase.due_ns) for phase in plan(profile).phases if phase.due_ns is not None)
        except LoadgenError as why:
            typer.echo(str(why), err=True)
            bad += 1
            continue
        typer.echo(
            f"{file}: OK: {_n(len(profile.kinds), 'kind')}, {_n(len(profile.phases), 'phase')}, "
            f"{_n(planned, 'arrival')} in open loops, {_n(len(profile.objectives), 'objective')}"
        )
    if bad:
        raise typer.Exit(2)


@app.command()
def show(file: File, seed: Seed = None, as_json: AsJson = False) -> None:
    """Show what a profile will send: phases, rates over time, kinds and their lengths.

    Example: loadgen profile show traffic_profiles/diurnal.yaml
    """
    from loadgen.schedule import describe_plan, plan
    from loadgen.traffic.profile import load_profile

    profile = load_profile(file)
    planned = plan(profile, seed)
    stories = describe_plan(planned)
    if as_json:
        typer.echo(json.dumps(_as_data(profile, planned.seed, stories), indent=2))
        return
    typer.echo(f"{profile.name}  seed {planned.seed}  sha256 {profile.sha256[:12]}")
    for phase, story in zip(profile.phases, stories, strict=True):
        typer.echo(f"\n{phase.name}{'' if story.measured else '  (warm-up, not measured)'}")
        for line in _open_lines(phase, story) if phase.open else _closed_lines(story):
            typer.echo(f"  {line}")
    typer.echo("")
    for kind in profile.kinds.values():
        typer.echo(_kind_line(kind, sum(each.weight for each in profile.kinds.values())))
    for objective in profile.objectives:
        typer.echo(f"objective  {objective.text}")


@app.command()
def keys() -> None:
    """Print every key of a profile with an example.

    Example: loadgen profile keys
    """
    import inspect

    from loadgen.traffic import chat, http_request, network, profile, shared_memory, trace

    rooms = (profile, chat, http_request, shared_memory, trace, network)
    typer.echo("\n\n\n".join(inspect.getdoc(room) or "" for room in rooms))


@app.command()
def synth(
    trace: Annotated[Path, typer.Argument(help="A recorded trace.", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="The profile to write; default: stdout.")] = None,
    keys: Annotated[str, typer.Option(help="A trace's keys, as a profile has them.")] = "{}",
    model: Annotated[str, typer.Option(help="The model that the profile names.")] = "minilm",
) -> None:
    """Fit a profile to a trace: rate curve, burstiness, lengths; none of its rows is in the profile.

    Example: loadgen profile synth trace.csv --keys "{columns: {time: t, input: tokens}, unit: ms}" --out fit.yaml
    """
    from loadgen.traffic.synth import synthesize
    from loadgen.traffic.trace import parse_trace
    from loadgen.traffic.traces.read import read_trace

    if out is not None and out.exists():
        raise LoadgenError(f"{out}: is there already; name a new file")
    rows = read_trace(parse_trace(str(trace.absolute()), keys, "--keys"), Path())
    for line in rows.facts["said"]:
        typer.echo(line, err=True)
    text = synthesize(rows, name="fitted" if out is None else out.stem, model=model)
    if out is None:
        typer.echo(text, nl=False)
    else:
        out.write_text(text, encoding="utf-8")
        typer.echo(f"wrote {out}", err=True)


def _n(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _open_lines(phase: "Phase", story: "PhaseStory") -> list[str]:
    assert phase.open is not None  # noqa: S101 - asked for open loops only
    count = f"{_n(story.planned or 0, 'arrival')} in {show_ns(story.span_ns or 0)}"
    pace = f"mean {story.mean_per_s:.4g}/s, busiest {show_ns(story.bin_ns or 0)} {story.peak_per_s:.4g}/s"
    lines = [f"open, {phase.open.arrivals}: {count}, {pace}"]
    if story.gap_cv is not None and story.dispersion is not None:
        lines.append(
            f"gaps vary by {story.gap_cv:.2f} of their mean, counts' variance / mean {story.dispersion:.2f}"
        )
    rates = _rates(phase)
    return [*lines, f"{sparkline(rates)}  {min(rates):.4g} to {max(rates):.4g}/s"]


def _closed_lines(story: "PhaseStory") -> list[str]:
    ends = [f"{story.planned:,} requests"] if story.planned is not None else []
    ends += [show_ns(story.span_ns)] if story.span_ns is not None else []
    return [f"closed, {_n(story.users, 'user')}, until {' or '.join(ends)}"]


def _rates(phase: "Phase") -> list[float]:
    """The rate at the middle of each column of a sparkline."""
    from loadgen.schedule import rate_curve

    assert phase.open is not None  # noqa: S101 - asked for open loops only
    step = phase.open.duration_ns / _WIDTH
    return [
        float(rate)
        for rate in rate_curve(phase.open.rate).rate_per_s([(i + 0.5) * step for i in range(_WIDTH)])
    ]


def sparkline(values: Sequence[float]) -> str:
    """A column of one to eight eighths a value, the largest filling it."""
    top = max(values) or 1.0
    return "".join(_BARS[min(round(value / top * 7), 7)] for value in values)


def _lengths(kind: "Kind") -> dict[str, int] | None:
    if kind.length is None:
        return None
    from loadgen.workload.lengths import max_length, min_length, quantile_lengths

    law = kind.length.law
    lengths = quantile_lengths(law, _SAMPLE)
    middle = {f"p{quantile * 100:.0f}": int(lengths[int(quantile * _SAMPLE)]) for quantile in _QUANTILES}
    return {"min": min_length(law), **middle, "max": max_length(law)}


def _kind_line(kind: "Kind", weights: float) -> str:
    lengths = _lengths(kind)
    said = " ".join(f"{name} {value}" for name, value in lengths.items()) if lengths else "none"
    version = f":{kind.version}" if kind.version else ""
    what = kind.subject if kind.http else f"model {kind.model}{version}"
    return (
        f"kind {kind.name}  {kind.weight / weights:.1%}  {what}  batch {kind.batch}  "
        f"lengths {said}  timeout {show_ns(kind.timeout_ns)}"
    )


def _as_data(profile: "TrafficProfile", seed: int, stories: Sequence["PhaseStory"]) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "name": profile.name,
        "seed": seed,
        "sha256": profile.sha256,
        "target": profile.target,
        "phases": [asdict(story) for story in stories],
        "kinds": {
            kind.name: {
                "model": kind.model,
                "version": kind.version,
                "weight": kind.weight,
                "batch": kind.batch,
                "timeout_ns": kind.timeout_ns,
                "lengths": _lengths(kind),
            }
            for kind in profile.kinds.values()
        },
        "objectives": [objective.text for objective in profile.objectives],
    }
