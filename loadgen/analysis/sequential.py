"""When to stop repeating a run: error spending, so that looking often does not make chance findings.

Whoever looks at a 95 % interval after every run, and stops when it is on one side of a limit, is wrong more often than
in 5 % of cases.  Each look is allowed a part of the error: what the spending function of Lan and DeMets (Biometrika 70,
1983) that is like Pocock's, alpha ln(1 + (e - 1) t), has gained since the look before; t is the share of the time limit
that was used.  The parts add up to at most alpha, so that the error of all looks together is at most alpha, however
the looks depend on each other (Bonferroni's inequality).
"""

from __future__ import annotations

import math

from loadgen.analysis.intervals import ALPHA

NAME = "alpha spending (Lan-DeMets, like Pocock)"


def spent(share: float, alpha: float = ALPHA) -> float:
    """How much of the error may be used up at this share of the time limit, 0 to 1."""
    return alpha * math.log(1 + (math.e - 1) * min(1.0, max(0.0, share)))


def alpha_at(share: float, before: float, alpha: float = ALPHA) -> float:
    """The error of a look at this share of the limit, when the look before was at `before`."""
    return spent(share, alpha) - spent(before, alpha)
