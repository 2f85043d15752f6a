"""`loadgen compare`: whether runs differ, by how much, and whether it matters; with --live it makes them itself."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loadgen.cli.connect import CaCert, Cert, Header, Insecure, Key, command, connect_options
from loadgen.cli.progress import Progress
from loadgen.cli.quick import numpy_without_threads
from loadgen.exits import ExitCode
from loadgen.records import LoadgenError

if TYPE_CHECKING:
    from loadgen.analysis.compare import Comparison
    from loadgen.lab.compare import LiveSide
    from loadgen.traffic.objective import Figure

EXITS = {
    "not_comparable": ExitCode.NOT_VALID,
    "worse": ExitCode.MISSED,
    "undecided": ExitCode.NOT_VALID,
    "not_worse": ExitCode.OK,
}


def compare(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="A B [C ...]",
            help="Run folders, or folders of repeats; the folder of a live comparison; with --live traffic profiles.",
        ),
    ],
    figure: Annotated[
        list[str] | None,
        typer.Option(help='What to compare instead of the usual, e.g. "chat: ttft p95"; may be repeated.'),
    ] = None,
    worth: Annotated[str, typer.Option(help="A change by less is not worth acting on.")] = "3%",
    points: Annotated[
        float,
        typer.Option(
            min=0, max=100, help="The same for shares (failure rate, goodput), in points of a percent."
        ),
    ] = 0.5,
    force: Annotated[bool, typer.Option("--force", help="Compare what is not comparable.")] = False,
    live: Annotated[
        bool,
        typer.Option(
            "--live", help="Make the runs, in turns (A B B A ...): of targets, profiles or configurations."
        ),
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a live comparison that was cut short.")
    ] = False,
    target: Annotated[
        list[str] | None,
        typer.Option(help="With --live: http://host:8000 or grpc://host:8001; twice for two sides."),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(
            help="With --live: changes of the model's configuration, e.g. '{delay: 5ms}'; {} is its own."
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, max=1000, help="With --live: runs of each side.")] = 4,
    seed: Annotated[
        int | None, typer.Option(min=0, help="With --live: other arrivals of the same law.")
    ] = None,
    header: Header = None,
    cacert: CaCert = None,
    cert: Cert = None,
    key: Key = None,
    insecure: Insecure = False,
    out: Annotated[
        Path | None, typer.Option(help="With --live: the folder to make; default comparisons/<time>.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write the page with its charts here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")] = False,
) -> None:
    """Compare runs with the first one: each figure's ratio and difference with intervals.

    Exit code: 0 no figure is worse, 1 one is worse by more than --worth, 2 usage, 3 undecided or not comparable,
    130 interrupted (what was measured is kept and reported).

    Example: loadgen compare runs/before runs/after --worth 5%

    Live: loadgen compare --live traffic_profiles/steady.yaml --target grpc://a:8001 --target grpc://b:8001 --rounds 6
    """
    numpy_without_threads()
    from loadgen.analysis.comparison_folder import JOURNAL, finished_rounds, read_journal
    from loadgen.traffic.objective import parse_figure

    figures, threshold = [parse_figure(text) for text in figure or ()], _share(worth)
    options = connect_options(header, cacert, cert, key, insecure)
    interrupted = False
    if live or resume:
        from loadgen.lab.compare import resume_comparison, run_comparison

        with Progress(quiet=quiet) as progress:
            if resume:
                done = resume_comparison(_only(paths), options, progress.say, progress.tick)
            else:
                sides, number = _sides(paths, target or [], config or [], seed)
                done = run_comparison(
                    sides, rounds, number, options, out, command(header), progress.say, progress.tick
                )
        paths, interrupted = [done.path], done.interrupted
        if interrupted and not finished_rounds(read_journal(done.path)):
            typer.echo(
                f"interrupted in the first round: loadgen compare {done.path} --resume goes on", err=True
            )
            raise typer.Exit(ExitCode.INTERRUPTED)
    elif target or config or out or seed is not None:
        raise LoadgenError("--target, --config, --seed and --out are for --live: it makes the runs")
    folder = paths[0] if len(paths) == 1 and (paths[0] / JOURNAL).exists() else None
    compared = _compared(paths, folder, figures, threshold, points / 100, force)
    _show(compared, folder, html, as_json)
    raise typer.Exit(ExitCode.INTERRUPTED if interrupted else EXITS[compared.conclusion])


def _compared(
    paths: list[Path], folder: Path | None, figures: list[Figure], worth: float, points: float, force: bool
) -> Comparison:
    from loadgen.analysis import comparison_folder
    from loadgen.analysis.comparability import side_of
    from loadgen.analysis.compare import compare as compare_sides

    if folder is not None:
        journal = comparison_folder.read_journal(folder)
        sides = comparison_folder.live_sides(folder, journal)
        expected = comparison_folder.expected_of(journal)
        return compare_sides(sides, figures, worth, points, force=force, in_rounds=True, expected=expected)
    if len(paths) < 2:  # noqa: PLR2004 - a comparison is of two
        raise LoadgenError(
            f"{paths[0]}: nothing to compare it with; allowed: two run folders or more, e.g. A B"
        )
    return compare_sides([side_of(path) for path in paths], figures, worth, points, force=force)


def _show(compared: Comparison, folder: Path | None, html: Path | None, as_json: bool) -> None:
    from loadgen.analysis.comparison_folder import PAGE, RESULT
    from loadgen.report.compare import print_comparison, render_comparison
    from loadgen.report.write import dumps
    from loadgen.runfile import write_atomic

    told = compared.json()
    # shown before it is written: a full disk hides no result
    if as_json:
        typer.echo(json.dumps(told, indent=1))
    else:
        from rich.console import Console

        print_comparison(compared, Console(highlight=False))
    page = html or (folder and folder / PAGE)
    if folder is not None:
        write_atomic(folder / RESULT, dumps(told))
    if page is not None:
        write_atomic(page, render_comparison(compared))
        if not as_json:
            typer.echo(f"\n{page}")


def _sides(
    paths: list[Path], targets: list[str], configs: list[str], seed: int | None
) -> tuple[list[LiveSide], int]:
    """What differs between the sides is what was given more than once."""
    from loadgen.lab.compare import LiveSide
    from loadgen.traffic.profile import load_profile

    several = [
        name
        for name, given in (("profiles", paths), ("--target", targets), ("--config", configs))
        if len(given) > 1
    ]
    if len(several) != 1:
        said = " and ".join(several) or "nothing"
        raise LoadgenError(
            f"--live: {said} given more than once; allowed: exactly one of two profiles, two --target, two --config"
        )
    profiles = [load_profile(path) for path in paths]
    count = max(len(profiles), len(targets), len(configs))
    found = []
    for place in range(count):
        profile = profiles[place if len(profiles) > 1 else 0]
        where = targets[place if len(targets) > 1 else 0] if targets else profile.target
        if where is None:
            raise LoadgenError(
                f"{profile.name} names no target: add --target http://host:8000 or grpc://host:8001"
            )
        text = configs[place if len(configs) > 1 else 0] if configs else None
        name = text if len(configs) > 1 else where if len(targets) > 1 else profile.name
        found.append(LiveSide(name or where, where, profile, text))
    return found, profiles[0].seed if seed is None else seed


def _only(paths: list[Path]) -> Path:
    if len(paths) != 1:
        raise LoadgenError(f"--resume takes the folder of one live comparison, not {len(paths)}")
    return paths[0]


def _share(text: str) -> float:
    number = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", text.strip())
    if number is None or float(number[1]) > 1000:  # noqa: PLR2004 - percent
        raise LoadgenError(f"--worth {text}: not a percentage; allowed: 0% to 1000%, e.g. 3%")
    return float(number[1]) / 100
