"""`loadgen coldstart`: from the start of a process to answers as fast as they will ever be."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from loadgen.cli.connect import CaCert, Cert, Header, Insecure, Key, command, connect_options
from loadgen.cli.demo import Protocol
from loadgen.cli.progress import Progress
from loadgen.cli.quick import numpy_without_threads
from loadgen.exits import ExitCode
from loadgen.records import LoadgenError
from loadgen.target import parse_target
from loadgen.units import UnitError, parse_duration


class Cache(StrEnum):
    """The page cache at the start of a repeat."""

    warm = "warm"
    dropped = "dropped"
    both = "both"


class Warmup(StrEnum):
    """Whether the model's configuration warms it up."""

    off = "off"
    on = "on"
    both = "both"


class Drop(StrEnum):
    """How much of the page cache is dropped."""

    machine = "machine"
    files = "files"


def coldstart(
    profile: Annotated[
        Path, typer.Argument(help="A traffic profile (YAML): its kinds and lengths are asked.")
    ],
    target: Annotated[
        str | None,
        typer.Option(
            help="A server with explicit model control; left out: an embedded one, a process a repeat."
        ),
    ] = None,
    repository: Annotated[Path, typer.Option(help="Model repository of the embedded server.")] = Path(
        "model_repository"
    ),
    model: Annotated[str | None, typer.Option(help="Which model, where the profile has several.")] = None,
    repeats: Annotated[int, typer.Option(min=1, max=100, help="Of each condition.")] = 5,
    answers: Annotated[int, typer.Option(min=4, max=10_000, help="Of each shape, in each repeat.")] = 20,
    lengths: Annotated[
        str | None, typer.Option(help="Lengths to ask, e.g. 8,32,128; default: three ends of the profile's.")
    ] = None,
    within: Annotated[int, typer.Option(min=1, max=1000, help="Warm is so many percent above steady.")] = 25,
    cache: Annotated[Cache, typer.Option(help="The page cache at the start of a repeat.")] = Cache.both,
    warmup: Annotated[Warmup, typer.Option(help="model_warmup of the configuration.")] = Warmup.both,
    drop: Annotated[
        Drop, typer.Option(help="Drop the whole machine's cache (root), or the files of model and server.")
    ] = Drop.machine,
    protocol: Annotated[Protocol, typer.Option(help="To the embedded server.")] = Protocol.grpc,
    timeout: Annotated[str, typer.Option(help="For one answer, cold ones too.")] = "120s",
    wait: Annotated[str, typer.Option(help="For server and model to become ready, or to unload.")] = "600s",
    header: Header = None,
    cacert: CaCert = None,
    cert: Cert = None,
    key: Key = None,
    insecure: Insecure = False,
    out: Annotated[
        Path | None, typer.Option(help="The folder to make; default runs/<time>-<name>-cold.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")] = False,
) -> None:
    """Measure a model's cold start: every stage, each new length, each instance, warm-up and page cache compared.

    Leaves a folder with coldstart.json; Ctrl-C keeps the repeats that were finished.  At a target the model is
    unloaded and loaded again and again: take one that nobody else uses.
    Exit code: 0 measured, 2 usage, 3 nothing was a cold start or nothing was answered, 130 interrupted.

    Example: loadgen coldstart traffic_profiles/steady.yaml --repeats 5
    """
    numpy_without_threads()
    from loadgen.analysis.coldstart import answered
    from loadgen.lab.coldstart import DROPPED, WARM, ColdOrder
    from loadgen.lab.coldstart import coldstart as measure
    from loadgen.runfile import drop_run_folder, make_run_folder, write_atomic
    from loadgen.traffic.profile import load_profile

    read = load_profile(profile)
    given = [_duration(*pair) for pair in (("--timeout", timeout), ("--wait", wait))]
    if not given[0]:
        raise LoadgenError(
            f"--timeout {timeout}: no answer comes in no time; allowed: more than 0, e.g. 120s"
        )
    where, asked = parse_target(target) if target else None, _lengths(lengths)
    options = connect_options(header, cacert, cert, key, insecure, embedded=target is None)
    path = make_run_folder(f"{read.name}-cold", out, datetime.now(UTC).isoformat(timespec="milliseconds"))

    def save(cold: dict[str, Any]) -> None:
        if cold["repeats"]:
            write_atomic(path / "coldstart.json", _dumps(_whole(cold)))

    with Progress(quiet=quiet) as progress:
        order = ColdOrder(
            profile=read, command=command(header), target=where, repository=repository,
            protocol=protocol.value, model=model, repeats=repeats, answers=answers, lengths=asked,
            within=within / 100, caches={"both": (WARM, DROPPED)}.get(cache.value, (cache.value,)),
            warmups={"both": (False, True), "on": (True,), "off": (False,)}[warmup.value],
            drop_machine=drop is Drop.machine, timeout_ns=given[0], wait_ns=given[1],
            unload_ns=min(given[1], 60 * 10**9), options=options,
            say=progress.say, tick=progress.tick, save=save,
        )  # fmt: skip
        try:
            cold = measure(order)
        finally:
            if (path / "coldstart.json").exists():
                (path / "run.json").unlink()  # the claim of the folder: this is no run
            else:
                drop_run_folder(path)
    _show(cold, path, as_json=as_json)
    if cold["status"] == "interrupted":
        raise typer.Exit(ExitCode.INTERRUPTED)
    raise typer.Exit(ExitCode.OK if answered(cold) else ExitCode.NOT_VALID)


def _whole(cold: dict[str, Any]) -> dict[str, Any]:
    from loadgen.analysis.coldstart import summarise

    return {**cold, "summary": summarise(cold)}


def _show(cold: dict[str, Any], path: Path, *, as_json: bool) -> None:
    from rich.console import Console

    from loadgen.analysis.coldstart import summarise
    from loadgen.report.coldstart import print_coldstart

    if as_json:
        typer.echo(_dumps({"folder": str(path), **_whole(cold)}), nl=False)
    else:
        print_coldstart(cold, summarise(cold), Console(highlight=False), path)


def _dumps(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _duration(option: str, text: str) -> int:
    try:
        return parse_duration(text)
    except UnitError as why:
        raise LoadgenError(f"{option}: {why}") from None


def _lengths(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdigit() and int(word) > 0 for word in words):
        raise LoadgenError(f"--lengths {text}: write whole numbers of 1 or more with commas, e.g. 8,32,128")
    return tuple(sorted({int(word) for word in words}))
