"""How often a run that is repeated until it is sure decides wrongly, in simulations whose truth is known."""

from loadgen.analysis import intervals
from loadgen.analysis.sequential import alpha_at
from tests.bench.queues import LAWS, truth


def errors(law, q, runs, looks, n, rng):
    """(share of trials that decided, mean number of looks) where the limit is the true quantile: the worst place, at
    which every decision is wrong.  Each trial is at most `looks` repeats of n requests.
    """
    limit, wrong, used = truth(law, q), 0, 0
    for _ in range(runs):
        parts = list(LAWS[law](looks, n, rng))
        for look in range(1, looks + 1):
            alpha = alpha_at(look / looks, (look - 1) / looks)
            found = intervals.quantile(parts[:look], q, alpha)
            decided = (found.high is not None and found.high < limit) or (
                found.low is not None and found.low > limit
            )
            if decided:
                wrong += 1
            if decided or look == looks:
                used += look
                break
    return wrong / runs, used / runs
