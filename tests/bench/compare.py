"""`make bench`: loadgen beside perf_analyzer and wrk, in one run on this machine, rounds interleaved.

Every group of cells (one server, one protocol, one load) is run by all clients one after the other, the
order turned round by round, so that what else the machine does falls on all of them; ratios are medians of
the rounds' own ratios.  Requests/s, CPU and reported percentiles of closed loops come from rounds without a
capture, figures on the wire from rounds of their own with one: capturing takes CPU.  Open loops are captured
always, lateness is what they are run for.  It must not know how a client is run nor how a table looks.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from loadgen.exits import ExitCode
from loadgen.records import NotWrittenError
from loadgen.runfile import write_atomic
from tests.bench import capture, clients, table
from tests.bench.clients import Cell, Client, FailedError, Job
from tests.bench.servers import MODEL, Null, RealTriton, Server


@dataclass(frozen=True)
class Group:
    """Cells that stand beside each other."""

    server: str
    protocol: str
    users: int | None = None
    rate: int | None = None
    seconds: float = 5.0
    captured: bool = False
    who: tuple[str, ...] = ()  # empty: all that can

    @property
    def loop(self) -> str:
        return "open" if self.rate else "closed"

    @property
    def load(self) -> str:
        return f"{self.rate}/s" if self.rate else f"{self.users} users"


@dataclass
class Row:
    """All rounds of one client in one group; a round that failed is None."""

    group: Group
    who: str
    cells: list[Cell | None] = field(default_factory=list)

    def values(self, name: str) -> list[float]:
        """Of the rounds that have it."""
        found = [
            getattr(cell, name, None) if hasattr(cell, name) else cell.more.get(name)
            for cell in self.cells
            if cell
        ]
        return [float(value) for value in found if value is not None]

    def median(self, name: str) -> float | None:
        values = self.values(name)
        return float(np.median(values)) if values else None


def groups(*, quick: bool, can_capture: bool) -> list[tuple[Group, int]]:
    """What is run, and how many rounds of it."""
    pair = ("loadgen", "perf_analyzer")
    both = ("http", "grpc")
    three, workers = (*pair, "wrk"), ("loadgen", "loadgen -w2")
    wired = (*three, "loadgen -rt")
    if quick:
        todo = [(Group("triton", p, users=32, seconds=2, who=three), 2) for p in both]
        todo += [(Group("null", p, users=32, seconds=1.5, who=three), 1) for p in both]
        todo += [(Group("null", "grpc", users=128, seconds=1.5, who=workers), 1)]
        wire = [Group("triton", p, users=32, seconds=1, captured=True, who=wired) for p in both]
        lateness = [(Group("null", "http", rate=3000, seconds=2, captured=True), 1)]
    else:
        todo = [(Group("triton", p, users=32, seconds=14, who=(*three, "loadgen -w2")), 5) for p in both]
        todo += [(Group("triton", p, users=u, seconds=2, who=pair), 5) for p in both for u in (1, 8)]
        todo += [(Group("null", p, users=32, seconds=3, who=(*three, "loadgen -w2")), 5) for p in both]
        todo += [(Group("null", "grpc", users=128, seconds=3, who=workers), 5)]
        wire = [
            Group("triton", p, users=u, seconds=1.5, captured=True, who=wired)
            for p in both
            for u in (1, 8, 32)
        ]
        wire += [Group("null", p, users=32, seconds=1.5, captured=True) for p in both]
        lateness = [
            (Group("null", "http", rate=r, seconds=2, captured=True), 5) for r in (500, 1000, 3000, 6000)
        ]
        lateness += [(Group("null", "grpc", rate=3000, seconds=2, captured=True), 5)]
    return todo + [(g, 1) for g in wire] * can_capture + lateness * can_capture


def run_cell(server: Server, group: Group, client: Client, folder: Path) -> Cell:
    job = Job(server, group.protocol, group.users, group.rate, group.seconds)
    if not group.captured:
        cell = client.run(job)
        cell.more.pop("stamps", None)
        return cell
    path, port = folder / "lo.pcap", server.ports[group.protocol]
    with capture.Capture(path, port, whole=group.protocol == "grpc") as seen:
        cell = client.run(job)
    on_wire(cell, group, path, port)
    cell.more["capture_dropped"] = seen.dropped
    path.unlink()
    return cell


def on_wire(cell: Cell, group: Group, path: Path, port: int) -> None:
    """Adds what the capture says to the cell: of loadgen's measured phase, of the others' whole run but
    its first second (half of it where the run is short).
    """
    if group.protocol == "http":
        seen = capture.http_pairs(path, port, f"POST /v2/models/{MODEL}/".encode())
    else:
        seen = capture.grpc_pairs(path, port)
    cell.more["wire_broken_connections"] = seen.broken
    stamps = cell.more.pop("stamps", None)
    if not seen.sent.size:
        return
    if stamps is not None:
        first = max(0, seen.sent.size - stamps["sent"].size)
        if seen.sent.size < stamps["sent"].size:  # not all were captured: which are missing cannot be told
            stamps = None
    else:
        first = int(np.searchsorted(seen.sent, seen.sent[0] + min(1.0, group.seconds / 2) * 1e9))
    sent, done = seen.sent[first:], seen.done[first:]
    took = done - sent
    cell.more["wire_n"] = int(took.size)
    cell.more["wire_p50_us"], cell.more["wire_p99_us"] = percentiles(took)
    if group.rate:
        fit, step = capture.lateness_of_grid(sent, group.rate)
        cell.more["fit_p50_us"], cell.more["fit_p99_us"] = percentiles(fit)
        cell.more["grid_step_ns"] = step
        late = fit
        if stamps is not None:
            late = capture.lateness_of_records(sent, stamps["sent"], stamps["due"])
        cell.more["late_p50_us"], cell.more["late_p99_us"] = percentiles(late)
        if stamps is not None:
            cell.more["wire_due_p50_us"], cell.more["wire_due_p99_us"] = percentiles(late + took)
        cell.more["late_origin"] = "the run's phase start" if stamps is not None else "least late request"


def percentiles(values: np.ndarray[Any, Any]) -> tuple[float, float]:
    """P50 and P99 by nearest rank, in microseconds."""
    ordered = np.sort(values)
    p50, p99 = (float(ordered[max(0, -(-ordered.size * q // 100) - 1)]) / 1e3 for q in (50, 99))
    return p50, p99


def run_all(
    todo: list[tuple[Group, int]], servers: dict[str, Server], say: Any, rows: dict[tuple[Group, str], Row]
) -> None:
    """Fills `rows`.  Rounds outermost: a group's rounds are spread over the whole time."""
    here = list(clients.clients())
    with tempfile.TemporaryDirectory(prefix="loadgen-bench-") as name:
        for number in range(max(rounds for _, rounds in todo)):
            for group, rounds in todo:
                server = servers[group.server]
                if number >= rounds or group.protocol not in server.ports:
                    continue
                turn = [c for c in here if group.protocol in c.protocols and group.loop in c.loops
                        and (not group.who or c.who in group.who)]  # fmt: skip
                for client in turn if number % 2 == 0 else reversed(turn):
                    row = rows.setdefault((group, client.who), Row(group, client.who))
                    try:
                        row.cells.append(run_cell(server, group, client, Path(name)))
                    except FailedError as why:
                        row.cells.append(None)
                        say(f"failed: {client.who} {group.server} {group.protocol} {group.load}: {why}")
                say(f"round {number + 1}/{rounds}  {group.server} {group.protocol} {group.load}"
                    + (" captured" if group.captured else ""))  # fmt: skip


def in_order(todo: list[tuple[Group, int]], rows: dict[tuple[Group, str], Row]) -> list[Row]:
    """As planned, loadgen's first in each group."""
    order = {client.who: at for at, client in enumerate(clients.clients())}
    places = {group: at for at, (group, _) in enumerate(todo)}
    return sorted(rows.values(), key=lambda row: (places[row.group], order[row.who]))


def read_rows(path: Path) -> list[Row]:
    """The rows that a bench.json was made from."""
    rows = []
    for told in json.loads(path.read_text())["cells"]:
        group = Group(**{f.name: told[f.name] for f in fields(Group) if f.name != "who"})
        rows.append(Row(group, told["who"], [cell and Cell(**cell) for cell in told["rounds"]]))
    return rows


def machine() -> dict[str, Any]:
    model = next((line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                  if line.startswith("model name")), None)  # fmt: skip
    return {"cpu": model, "cores": len(os.sched_getaffinity(0)), "kernel": platform.release(),
            "python": platform.python_version(), "load_1m_before": round(os.getloadavg()[0], 2)}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds, under two minutes")
    parser.add_argument("--rounds", type=int, help="at most this many of each group")
    parser.add_argument(
        "--only", help="only groups whose words (triton|null http|grpc closed|open LOAD) hold these"
    )
    parser.add_argument("--show", type=Path, help="run nothing: print the table of a bench.json")
    parser.add_argument("--out", type=Path, default=Path("bench.json"))
    args = parser.parse_args()
    if args.show:
        rows = read_rows(args.show)
        print(table.text(rows, table.ratios(rows)))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # servers are stopped on the way out
    refusal = capture.refusal()
    missing = clients.missing()
    if refusal is not None and not any("tcpdump" in line for line in missing):
        missing.append(f"no capture, so no figures on the wire and no lateness: {refusal}")
    for line in missing:
        print(f"note: {line}")
    todo = groups(quick=args.quick, can_capture=refusal is None)
    if args.rounds:
        todo = [(group, min(rounds, args.rounds)) for group, rounds in todo]
    if args.only:
        words = args.only.split()
        todo = [
            (g, n) for g, n in todo if all(w in f"{g.server} {g.protocol} {g.loop} {g.load}" for w in words)
        ]
    try:
        cut_short = measure(todo, missing, args.out)
    except NotWrittenError as why:  # the table was shown
        sys.stderr.write(f"error: {why}\n")
        sys.exit(why.exit_code)
    sys.exit(ExitCode.INTERRUPTED if cut_short else ExitCode.OK)


def measure(todo: list[tuple[Group, int]], missing: list[str], out: Path) -> bool:
    """Runs, prints and writes; True when it was cut short."""
    about, start = machine(), time.monotonic()

    def say(line: str) -> None:
        sys.stderr.write(f"{time.monotonic() - start:5.0f} s  {line}\n")

    found: dict[tuple[Group, str], Row] = {}
    cut_short = False
    try:
        with ExitStack() as stack:
            stack.enter_context(clients.no_proxy())
            kinds = {"triton": RealTriton, "null": Null}
            servers = {name: stack.enter_context(kind()) for name, kind in kinds.items()
                       if any(group.server == name for group, _ in todo)}  # fmt: skip
            run_all(todo, servers, say, found)
    except (KeyboardInterrupt, SystemExit) as why:
        cut_short = True
        say(f"cut short ({why or type(why).__name__}): what there is so far is shown")
    rows = in_order(todo, found)
    told = table.ratios(rows)
    print(table.text(rows, told))
    cells = [{**asdict(row.group), "loop": row.group.loop, "who": row.who,
              "rounds": [cell and asdict(cell) for cell in row.cells]} for row in rows]  # fmt: skip
    result = {**told, "machine": about, "seconds": round(time.monotonic() - start), "cut_short": cut_short,
              "missing": missing, "method": table.METHOD, "cells": cells}  # fmt: skip
    write_atomic(out, json.dumps(result, indent=1) + "\n")
    print(f"\nwritten: {out}")
    return cut_short


if __name__ == "__main__":
    main()
