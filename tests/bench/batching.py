"""Dynamic batching on against off, at equal load, on a model that takes 20 ms an execution whatever the batch.

    python tests/bench/batching.py [SECONDS]      # prints a Markdown table

The server is the embedded Triton; the model sleeps, so its time does not depend on the machine.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from loadgen.lab.run import Order, measure
from loadgen.report.write import write_reports
from loadgen.target import parse_target
from loadgen.traffic.profile import parse_profile
from loadgen.triton.local import LocalTriton

SLEEP_MS, MAX_BATCH = 20, 8
RATES = (40, 200)  # below and beyond what one request an execution can do: 50/s
PROFILE = """
name: batching
seed: 11
kinds:
  k: {model: slow, timeout: 60s}
phases:
  - {name: warm-up, warmup: true, closed: {users: 8, requests: 24}}
  - {name: load, open: {arrivals: poisson, rate: [{duration: %ds, at: %d/s}]}}
"""


def configured(server, config, *, batching):
    """Loads the model anew with the batcher on (its defaults) or off."""
    config = {
        **config,
        "max_batch_size": MAX_BATCH,
        "parameters": {"sleep_ms": {"string_value": str(SLEEP_MS)}},
    }
    config.pop("dynamic_batching", None)
    server.load("slow", {**config, "dynamic_batching": {}} if batching else config)


def rows(server, config, out, seconds):
    """One row a rate and batcher: rate, batching, throughput, P50 and P99 in ns, mean batch."""
    found = []
    for rate in RATES:
        for batching in (False, True):
            configured(server, config, batching=batching)
            profile = parse_profile(PROFILE % (seconds, rate), "batching.yaml")
            order = Order(profile, parse_target(server.grpc_target), 11, out / f"{rate}-{batching}", [])
            summary = write_reports(measure(order).path)
            total = summary["total"]
            latency = total["latency_ns"]
            found.append(
                (
                    rate,
                    batching,
                    total["achieved_per_s"],
                    latency["p50"],
                    latency["p99"],
                    summary["server"]["mean_batch"],
                )
            )
    return found


def markdown(found):
    """As the README shows it."""
    lines = ["| load | dynamic batching | answered | P50 | P99 | mean batch |", "|---|---|---|---|---|---|"]
    for rate, batching, per_s, p50, p99, batch in found:
        on = "on" if batching else "off"
        lines.append(
            f"| {rate}/s | {on} | {per_s:.1f}/s | {p50 / 1e6:,.0f} ms | {p99 / 1e6:,.0f} ms | {batch:.2f} |"
        )
    return "\n".join(lines)


def served_config(target):
    """The configuration as the server has it."""
    from loadgen.lab.buckets import facts_at

    return dict(facts_at(parse_target(target), "slow").config)


def main():
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    with tempfile.TemporaryDirectory() as scratch:
        repository = Path(scratch) / "repository"
        shutil.copytree(ROOT / "tests" / "support" / "models" / "slow", repository / "slow")
        with LocalTriton(repository, models=["slow"]) as server:
            print(markdown(rows(server, served_config(server.grpc_target), Path(scratch), seconds)))


if __name__ == "__main__":
    main()
