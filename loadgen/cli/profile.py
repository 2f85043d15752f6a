"""`loadgen profile`: check a traffic profile, show what it will send, list its keys, fit one to a trace."""

import json
import shlex
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from loadgen.exits import ExitCode
from loadgen.records import LoadgenError

app = typer.Typer(
    help="Check a traffic profile, show what it will send, list its keys, fit one to a trace.",
    no_args_is_help=True,
)

Files = Annotated[list[Path], typer.Argument(help="Profiles, YAML or JSON.", show_default=False)]
File = Annotated[Path, typer.Argument(help="A profile, YAML or JSON.", show_default=False)]
Seed = Annotated[int | None, typer.Option(help="Instead of the profile's own.", min=0)]
AsJson = Annotated[bool, typer.Option("--json", help="For scripts.")]


class Dialect(StrEnum):
    """What a trace's row is sent as."""

    tensors = "tensors"
    chat = "chat"
    completion = "completion"
    generate = "generate"


@app.command()
def lint(files: Files) -> None:
    """Read profiles and say OK, with notes on what is legal but unwise, or every line that is wrong (exit 2).

    Example: loadgen profile lint traffic_profiles/*.yaml
    """
    from loadgen.traffic.document import ProfileError

    bad = 0
    for file in files:
        try:
            lines = _linted(file)
        except LoadgenError as why:
            # a profile's own faults name it; those of the files that it names do not
            typer.echo(str(why) if isinstance(why, ProfileError) else f"{file}: {why}", err=True)
            bad += 1
            continue
        typer.echo("\n".join(lines))
    if bad:
        raise typer.Exit(ExitCode.USAGE)


def _linted(file: Path) -> list[str]:
    from loadgen.analysis.unwise import unwise
    from loadgen.planstory import describe_plan
    from loadgen.schedule import plan
    from loadgen.traffic.profile import load_profile

    profile = load_profile(file)
    planned = plan(profile)
    stories = describe_plan(planned)
    arrivals = sum(story.planned or 0 for story in stories if story.loop == "open")
    counted = (
        f"{file}: OK: {_n(len(profile.kinds), 'kind')}, {_n(len(profile.phases), 'phase')}, "
        f"{_n(arrivals, 'arrival')} in open loops, {_n(len(profile.objectives), 'objective')}"
    )
    return [counted, *(f"{file}: note: {note}" for note in unwise(profile, planned, stories))]


@app.command()
def show(
    file: File,
    seed: Seed = None,
    save: Annotated[
        Path | None, typer.Option(help="A new file for the plan (Arrow): `loadgen run --plan` sends it.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what a profile will send: arrivals over time, how bursty they are, kinds and their lengths.

    Example: loadgen profile show traffic_profiles/diurnal.yaml --save day.arrow
    """
    from loadgen.planfile import save_plan
    from loadgen.planstory import describe_plan
    from loadgen.report.plan import plan_data, plan_lines
    from loadgen.schedule import plan
    from loadgen.traffic.profile import load_profile

    profile = load_profile(file)
    planned = plan(profile, seed)
    if save is not None:
        save_plan(planned, save, profile.sha256)
    stories = describe_plan(planned)
    if as_json:
        typer.echo(json.dumps(plan_data(profile, planned, stories), indent=2))
    else:
        typer.echo("\n".join(plan_lines(profile, planned, stories)))
    if save is not None:
        command = shlex.join(["loadgen", "run", str(file), "--plan", str(save)])
        typer.echo(f"wrote {save}; to send it: {command}", err=True)


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
    sent_as: Annotated[Dialect, typer.Option("--as", help="What each row becomes.")] = Dialect.tensors,
) -> None:
    """Fit a profile to a trace: rate curve, burstiness, lengths; none of its rows is in the profile.

    A trace of a language model's server is sent as it was asked: --as chat.

    Example: loadgen profile synth trace.csv --keys "{columns: {time: t, input: tokens}, unit: ms}" --out fit.yaml
    """
    from loadgen.runfile import write_atomic
    from loadgen.traffic.synth import synthesize
    from loadgen.traffic.trace import parse_trace
    from loadgen.traffic.traces.read import read_trace

    if out is not None and out.exists():
        raise LoadgenError(f"{out}: is there already; name a new file")
    rows = read_trace(parse_trace(str(trace.absolute()), keys, "--keys"), Path())
    for line in rows.facts["said"]:
        typer.echo(line, err=True)
    dialect = None if sent_as is Dialect.tensors else sent_as.value
    text = synthesize(rows, name="fitted" if out is None else out.stem, model=model, dialect=dialect)
    if out is None:
        typer.echo(text, nl=False)
    else:
        write_atomic(out, text)
        typer.echo(f"wrote {out}", err=True)


def _n(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
