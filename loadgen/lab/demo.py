"""The whole product in one call: convert MiniLM (once), serve it, send a mixed-length profile, measure."""

from __future__ import annotations

from dataclasses import asdict
from importlib import resources
from typing import TYPE_CHECKING

from loadgen.lab.run import Measured, Order, measure
from loadgen.lab.watch import beside
from loadgen.target import parse_target
from loadgen.traffic.profile import parse_profile
from loadgen.triton.local import LocalTriton

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from loadgen.convert.options import ConvertOptions

MODEL = "minilm"


def demo_profile_text() -> str:
    """The profile that the demo sends; it lies beside this module so that an installed package has it."""
    return (resources.files(__package__) / "demo.yaml").read_text(encoding="utf-8")


def demo(
    options: ConvertOptions,
    *,
    protocol: str,
    out: Path | None,
    command: list[str],
    say: Callable[[str], None],
    tick: Callable[[str], None],
) -> Measured:
    """Converts if need be, serves on loopback, measures, ends the server.  Raises LoadgenError.

    `say` and `tick` as in `lab.run.Order`.
    """
    from loadgen.convert.convert import convert, is_current

    profile = parse_profile(demo_profile_text(), "demo.yaml")
    if is_current(options.repository, options.name, options, MODEL):
        say(f"{options.version_folder} is there already")
    else:
        convert(MODEL, options, say)
    with LocalTriton(options.repository, models=[options.name], say=say) as server:
        target = parse_target(server.grpc_target if protocol == "grpc" else server.http_target)
        order = Order(
            profile=profile,
            target=target,
            seed=profile.seed,
            out=out,
            command=command,
            say=say,
            tick=tick,
            beside=beside(server.facts),
            cold_start=asdict(server.readiness),
        )
        return measure(order)
