"""The run that the golden reports and the kept fixture show: two kinds, a warm-up, a stall, some failures."""

from pathlib import Path

import numpy as np

from loadgen.records import Outcome
from tests.support.runs import MS, S, build, info, phase, row, statistics, window


def example(path: Path, n: int = 600) -> Path:
    """`n` requests over 60 s; the server freezes from 40 s to 42 s.  The same folder every time."""
    rng = np.random.default_rng(1)
    short = info([])["kinds"][0]
    kinds = [short, short | {"name": "long <b>&", "batch": 8}]
    rows = []
    for i in range(n):
        due, kind = i * 60 * S // n, int(rng.random() < 0.3)
        service = int(rng.lognormal(0, 0.5) * (25 if kind else 10) * MS)
        lag, chance = int(rng.exponential(60_000)), rng.random()
        end = {"items": 8 if kind else 1, "length": int(rng.integers(4, 256 if kind else 64))}
        if 40 * S < due < 42 * S:
            service += 42 * S - due
        if chance < 0.005:
            service = MS
            end |= {
                "outcome": Outcome.REJECTED,
                "status": 503,
                "detail": "queue full\x1b[31m </script>[bold]",
            }
        elif chance < 0.01:
            service = 5 * S
            end |= {"outcome": Outcome.TIMEOUT}
        rows.append(row(due, service, lag, phase=int(due >= 10 * S), kind=kind, **end))
    phases = [
        phase("warm", measured=False, planned=n // 6, max_in_flight=9),
        phase("steady", planned=n - n // 6, duration_ns=50 * S, start_ns=10 * S, load_end_ns=60 * S,
              end_ns=60 * S + 300 * MS, max_in_flight=21, cpu_ns=400 * MS),
    ]  # fmt: skip
    server = window(statistics({1: 10}), statistics({1: 110, 2: 50, 4: 40, 8: 20}, requests=510))
    objectives = ["latency p99 < 250ms", "latency p50 < 50ms", "failure rate < 5%", "items/s > 5"]
    return build(path, rows, phases, server, kinds=kinds, objectives=objectives)
