"""`loadgen serve`: a real Triton on this machine, without Docker.

Parses, calls `loadgen.triton`, prints.
"""

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadgen.exits import ExitCode
from loadgen.records import LoadgenError
from loadgen.target import parse_target
from loadgen.units import UnitError, parse_duration, show_ns

if TYPE_CHECKING:
    from loadgen.triton.launch import Running
    from loadgen.triton.local import LocalTriton

app = typer.Typer(no_args_is_help=True, help="Start and stop a real Triton on this machine, without Docker.")

_FOLLOW_S = 0.2
Name = Annotated[str, typer.Option(help="Which server: several can run under different names.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _say(line: str) -> None:
    from loadgen.cli.output import stderr_console

    stderr_console().print(line, markup=False, highlight=False, soft_wrap=True, style="dim")


@app.command()
def start(
    repository: Annotated[
        Path, typer.Option(help="Model repository: a folder with a folder a model.")
    ] = Path("model_repository"),
    model: Annotated[list[str] | None, typer.Option(help="Model to load; repeat for more.")] = None,
    http_port: Annotated[int | None, typer.Option(help="A free one if left out.")] = None,
    grpc_port: Annotated[int | None, typer.Option(help="A free one if left out.")] = None,
    metrics_port: Annotated[int | None, typer.Option(help="A free one if left out.")] = None,
    name: Name = "default",
    timeout: Annotated[str, typer.Option(help='Until server and models are ready, e.g. "120s".')] = "120s",
    option: Annotated[list[str] | None, typer.Option(help="Further tritonserver option; repeatable.")] = None,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay until Ctrl-C, then stop it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Start Triton, wait for it and for each model, print its addresses.

    Installs the server on first use.  It listens on loopback only and goes on until `loadgen serve stop`;
    with --foreground until Ctrl-C (or SIGTERM or SIGHUP), which stops it and exits 0.

    Example: loadgen serve start --repository model_repository --model minilm
    """
    from loadgen.triton import named
    from loadgen.triton.local import LocalTriton

    try:
        timeout_ns = parse_duration(timeout)
    except UnitError as why:
        raise LoadgenError(f"--timeout: {why}") from None
    server = LocalTriton(
        repository,
        models=model or (),
        http_port=http_port,
        grpc_port=grpc_port,
        metrics_port=metrics_port,
        timeout_ns=timeout_ns,
        state_dir=named.folder_of(name),
        options=option or (),
        say=_say,
    )
    if foreground:
        _stay(name, server, as_json)
    else:
        named.start(name, server, lambda running: _print_started(name, running, server, as_json))


def _stay(name: str, server: "LocalTriton", as_json: bool) -> None:
    from loadgen.triton import named

    with named.claimed(name):
        server.start()
    try:
        _print_started(name, server.facts, server, as_json)
        code = server.wait()
    except KeyboardInterrupt:
        _say("stopping")
        return
    finally:
        server.stop()
    if code:
        raise server.died()


def _print_started(name: str, running: "Running", server: "LocalTriton", as_json: bool) -> None:
    ready = server.readiness
    if as_json:
        typer.echo(json.dumps({"name": name, **_addresses(running), "readiness": asdict(ready)}))
        return
    for key, value in _addresses(running).items():
        typer.echo(f"{key:<10} {value}")
    typer.echo(f"{'live':<10} {show_ns(ready.live_ns or 0)} after its start")
    for model, ns in ready.load_ns.items():
        typer.echo(f"{'loaded':<10} {model} in {show_ns(ns)}")


def _addresses(running: "Running") -> dict[str, Any]:
    return {
        "http": running.http_target,
        "grpc": running.grpc_target,
        "metrics": running.metrics_url,
        "pid": running.server_pid,
        "repository": running.repository,
    }


@app.command()
def stop(name: Name = "default") -> None:
    """Stop a server: requests in flight get 10 s to end.

    Example: loadgen serve stop
    """
    from loadgen.triton import named

    running = named.stop(name)
    typer.echo(f"stopped {name} (pid {running.server_pid})")


@app.command()
def status(name: Name = "default", as_json: AsJson = False) -> None:
    """Say whether a server is live and ready, and each model's state.  Exits 1 when it does not run.

    Example: loadgen serve status --json
    """
    facts = _status(name)
    if as_json:
        typer.echo(json.dumps(facts))
    else:
        for key, value in facts.items():
            if key != "models":
                typer.echo(f"{key:<10} {_word(value)}")
        for row in facts["models"]:
            told = (row["name"], row.get("version"), row.get("state", "not loaded"), row.get("reason"))
            typer.echo(" ".join(f"model      {' '.join(filter(None, told))}".splitlines()))
    if not facts["running"]:
        raise typer.Exit(ExitCode.MISSED)


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else str(value)


def _status(name: str) -> dict[str, Any]:
    from loadgen.triton import named
    from loadgen.triton.launch import read_exit_code

    running = named.find(name)
    if running is None or not running.alive():
        code = None if running is None else read_exit_code(named.folder_of(name))
        return {"name": name, "running": False, "exit_code": code, "models": []}
    import asyncio

    health = asyncio.run(_health(running.http_target))
    return {"name": name, "running": True, **_addresses(running), **health}


async def _health(target: str) -> dict[str, Any]:
    from loadgen.triton.control import Control
    from loadgen.triton.links import NoServerError

    async with Control(parse_target(target)) as control:
        try:
            return {
                "live": await control.server_live(),
                "ready": await control.server_ready(),
                "models": await control.repository_index(),
            }
        except NoServerError:
            return {
                "live": False,
                "ready": False,
                "models": [],
            }  # the process is there, it does not answer yet


@app.command()
def load(
    model: Annotated[str, typer.Argument(help="Model of the server's repository.")], name: Name = "default"
) -> None:
    """Load a model into a running server and wait until it is ready.

    Example: loadgen serve load minilm
    """
    from loadgen.triton import named
    from loadgen.triton.launch import check_model_name

    running = named.find_alive(name)
    check_model_name(model)
    import asyncio

    asyncio.run(_load(running.http_target, named.folder_of(name) / "server.log", model))
    typer.echo(f"{model} is ready")


async def _load(target: str, log: Path, model: str) -> None:
    from loadgen.triton.control import Control

    async with Control(parse_target(target), log=log) as control:
        await control.load(model)
        await control.wait_model_ready(model)


@app.command()
def logs(
    name: Name = "default",
    lines: Annotated[int, typer.Option(min=1, help="How many of the last lines.")] = 50,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on printing until the server ends.")
    ] = False,
) -> None:
    """Print the log of the last server of that name, also after its end.

    Example: loadgen serve logs --lines 20
    """
    from loadgen.triton import named

    path = named.folder_of(name) / "server.log"
    if not path.exists():
        raise LoadgenError(
            f"no server named {name!r} was started here; known: {', '.join(named.names()) or 'none'}"
        )
    with path.open(errors="replace") as file:
        typer.echo("".join(file.readlines()[-lines:]), nl=False)
        while follow:
            running = named.find(name)
            ended = running is None or not running.alive()  # asked before the read: nothing is missed
            typer.echo(file.read(), nl=False)
            if ended:
                return
            time.sleep(_FOLLOW_S)


@app.command()
def install() -> None:
    """Install the embedded Triton ahead of its first use (about 280 MB on disk), or find it installed.

    Example: loadgen serve install
    """
    from loadgen.triton.install import ensure_installed

    typer.echo(ensure_installed(_say).folder)
