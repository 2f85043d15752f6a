"""What a run may ask of this machine: work for each worker, open files for each connection.

Refused before anything is sent.  It must not know servers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loadgen.lab.facts import raise_file_limit
from loadgen.records import LoadgenError

if TYPE_CHECKING:
    from loadgen.lab.run import Order
    from loadgen.records import Plan

_FILES_OF_OURS = 64  # besides connections


def check_workers(order: Order, plan: Plan) -> None:
    """Raises LoadgenError when there is not enough to share out among the workers."""
    cap = order.profile.cap
    most = min((p.users for p in plan.phases if p.loop == "closed"), default=order.workers)
    if cap is not None:
        most = min(most, cap.in_flight)
    if order.workers > most:
        raise LoadgenError(
            f"{order.workers} workers have too little to share: the profile's smallest closed loop or its cap is "
            f"{most}; allowed: 1 to {most}"
        )


def check_file_limit(plan: Plan, order: Order) -> None:
    """Lifts the soft limit of open files; raises LoadgenError when even the hard one is too low.

    HTTP/1.1 takes a connection a request in flight, shared out among the workers: as many as a closed loop has
    users, or as the cap lets an open loop have.  Without a cap nobody knows: what then finds no descriptor fails
    by itself (transport.dial), and is counted.
    """
    allowed = raise_file_limit()
    if order.target.protocol != "http":
        return
    cap = order.profile.cap.in_flight if order.profile.cap else None
    users = max((p.users for p in plan.phases), default=0)
    most, what = (users if cap is None else min(users, cap)), f"{users} users"
    if cap is not None and any(p.loop == "open" for p in plan.phases):
        most, what = cap, f"a cap of {cap} requests in flight"
    needed = -(-most // order.workers) + _FILES_OF_OURS
    if needed > allowed:
        needs = f"{what} over HTTP needs" if most == cap else f"{what} over HTTP need"
        raise LoadgenError(
            f"{needs if most else 'a run needs'} {needed} open files in a process, this system allows {allowed} "
            "(ulimit -Hn); raise that limit" + (", ask for fewer, use --workers, or gRPC" if most else "")
        )
