"""How often `loadgen run --until-sure` decides wrongly, and after how many runs, in simulations whose truth is known.

The true quantile lies just beyond the limit (so that only a fail is right) or just within it (only a pass): nowhere is a
wrong decision likelier.
"""

from dataclasses import dataclass

import numpy as np

from loadgen.analysis import intervals
from loadgen.analysis.sequential import design
from loadgen.analysis.slo import Verdict, verdict
from loadgen.traffic.objective import Figure, Objective
from tests.bench.queues import LAWS, truth

DIFFER = "runs that differ by 10 %, exponential"
LAW_NAMES = ("independent, exponential", "AR(1), 0.9", "M/M/1, load 0.5", "M/M/1, load 0.7", DIFFER)
CHUNK = 2000  # runs that are simulated at once


@dataclass(frozen=True)
class Trial:
    """What one use of --until-sure came to, and after how many runs."""

    verdict: Verdict
    runs: int


def trial(runs, q, limit, alpha=None):
    """`runs`: the latencies of the most runs that the time allows, runs x requests; the objective is quantile q < limit.

    `alpha` of each look is the design's unless given.
    """
    plan = design(len(runs))
    objective = Objective("latency", Figure("latency", q), "<", limit)
    for look in plan.looks:
        found = intervals.quantile(list(runs[:look]), q, plan.alpha if alpha is None else alpha)
        said = verdict(objective, found)
        if said is not Verdict.INCONCLUSIVE:
            break
    return Trial(said, look)


def trials(law, q, n, most, count, away=0.0, alpha=None, seed=20261202):
    """So many trials of runs of n requests, the limit a share `away` above the truth."""
    rng = np.random.default_rng([seed, LAW_NAMES.index(law), n, most])
    base = "independent, exponential" if law == DIFFER else law
    limit = truth(base, q) * (1 + away)
    made = []
    while len(made) < count:
        held = min(count - len(made), max(1, CHUNK // most))
        runs = LAWS[base](held * most, n, rng).reshape(held, most, n)
        if law == DIFFER:
            runs *= np.exp(rng.normal(0, 0.1, (held, most, 1)))
        made += [trial(one, q, limit, alpha) for one in runs]
    return made


def errors(law, q, n, most, count, alpha=None):
    """(share of wrong passes, share of wrong fails, mean number of runs) with the truth at the limit."""
    made = trials(law, q, n, most, count, alpha=alpha)
    share = [sum(one.verdict is wrong for one in made) / count for wrong in (Verdict.PASS, Verdict.FAIL)]
    return *share, sum(one.runs for one in made) / count


def mean_runs(law, q, n, most, count, away):
    """(share decided rightly, mean number of runs) with the limit a share `away` above the truth."""
    made = trials(law, q, n, most, count, away)
    right = Verdict.PASS if away > 0 else Verdict.FAIL
    return sum(one.verdict is right for one in made) / count, sum(one.runs for one in made) / count


def sequential_table(count=400, n=1000, most=10):
    """The lines of a Markdown table."""
    lines = [
        "| law | figure | wrong pass | wrong fail | runs at the limit | 20 % within: decided, runs | 20 % beyond: decided, runs |",
        "|---|---|---|---|---|---|---|",
    ]
    for law in LAW_NAMES:
        for q in (0.5, 0.99):
            passes, fails, runs = errors(law, q, n, most, count)
            ends = [mean_runs(law, q, n, most, count // 4, away) for away in (0.2, -0.2)]
            clear = " | ".join(f"{100 * share:.0f} %, {mean:.1f}" for share, mean in ends)
            lines.append(
                f"| {law} | P{100 * q:g} | {100 * passes:.1f} % | {100 * fails:.1f} % | {runs:.1f} | {clear} |"
            )
            print(lines[-1], flush=True)
    return lines


if __name__ == "__main__":
    sequential_table()
