"""Advice on a model's batches in words with numbers, from the figures of analysis.explain.

One function a rule; each says what it saw, what it cost, and what to change.  Nothing is said of what decided
fewer than LEAST of the batches.  Pure text.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from loadgen.units import show_ns

LEAST = 0.05
_WASTE = 0.2
_ALONE = 1.2  # a mean batch, in requests, that is hardly one

Figures = Mapping[str, Any]


def counsel(seen: Figures) -> list[str]:
    """Sentences, most of the batches first."""
    rules = sorted(seen["rules"].items(), key=lambda item: -item[1]["share"])
    said = [_BY_RULE[name](seen, told) for name, told in rules if told["share"] >= LEAST]
    return [line for line in said if line] + list(_beyond(seen))


def _full(seen: Figures, told: Figures) -> str:
    text = f"{_part(told)} were full at max_batch_size {seen['max_batch']}"
    if told["mean_left"] < 1:
        return f"{text}, and no one was left waiting: the limit fits this load"
    text += f" with {told['mean_left']:.1f} rows left waiting"
    cost = seen["cost"]
    if cost is None or not cost["fixed_ns"]:
        return f"{text}: try a larger max_batch_size, or another instance"
    now, twice = (cost["fixed_ns"] / n + cost["row_ns"] for n in (seen["max_batch"], 2 * seen["max_batch"]))
    return (
        f"{text}: an execution costs {show_ns(cost['fixed_ns'])} and {show_ns(cost['row_ns'])} a row, so "
        f"max_batch_size {2 * seen['max_batch']} would take {show_ns(twice)} a row instead of {show_ns(now)} "
        "(if the line goes on: measure it)"
    )


def _preferred(seen: Figures, told: Figures) -> str:
    sizes = ", ".join(map(str, seen["preferred"]))
    text = f"{_part(told)} ended at a preferred size ({sizes}) with {told['mean_left']:.1f} rows left waiting"
    why = (
        "at a delay of 0 the smallest preferred size that is reached seals a batch: it is a cap, not a wish"
        if not seen["delay_ns"]
        else "a batch goes as soon as it reaches a preferred size"
    )
    return f"{text}: {why}; take preferred_batch_size out to let batches grow to {seen['max_batch']}{_gain(seen, told)}"


def _delay(seen: Figures, told: Figures) -> str:
    return (
        f"{_part(told)} waited for company until max_queue_delay_microseconds ({show_ns(seen['delay_ns'])}) was over, "
        f"although an instance was free: {show_ns(told['company_ns_mean'])} a request, for batches of "
        f"{told['mean_rows']:.1f} rows; {_worth(seen, told)}"
    )


def _worth(seen: Figures, told: Figures) -> str:
    cost, rows = seen["cost"], told["mean_rows"]
    if cost is None:
        return "a shorter delay costs nothing where batches stay as they are: compare with delay 0"
    saved = cost["fixed_ns"] * (rows - 1) / rows
    if saved > told["company_ns_mean"]:
        return (
            f"sharing an execution saves the server {show_ns(saved)} a row, more than the wait: it pays when the server is "
            "the limit"
        )
    return f"sharing an execution saves the server only {show_ns(saved)} a row, less than the wait: shorten the delay"


def _shapes(seen: Figures, told: Figures) -> str:
    return (
        f"{_part(told)} were closed by a request of another shape, at {told['mean_rows']:.1f} rows and with "
        f"{told['mean_left']:.1f} left waiting: the batcher takes requests in order and never looks behind one that does not fit; "
        "pad to a few lengths in the client, or allow_ragged_batch: true where the model pads "
        f"itself{_gain(seen, told)}"
    )


def _client(seen: Figures, told: Figures) -> str:
    each = told["mean_rows"] * told["batches"] / told["requests"]
    return (
        f"{_part(told)} had {told['mean_rows']:.1f} of {seen['max_batch']} rows because the next request did not fit whole "
        f"(about {each:.1f} rows each; a request is never split): choose max_batch_size as a multiple of what a request holds"
    )


def _bound(seen: Figures, told: Figures) -> str:
    text = f"{_part(told)} were closed at {told['mean_rows']:.1f} rows before {told['mean_left']:.1f} others came"
    if not seen["prefetch"]:
        return f"{text}: they were handed to an instance just then"
    return (
        f"{text}: up to {2 * seen['instances']} batches are bound ahead of time (two an instance) and only the newest grows; "
        "fewer instances, or a delay, bind later and larger"
    )


def _stalled(seen: Figures, told: Figures) -> str:
    return (
        f"{_part(told)} began late, with an instance free and {told['mean_rows']:.1f} rows waiting "
        f"({show_ns(told['company_ns_mean'])} a request; service is {show_ns(seen['service_ns_p50'])})"
    )


def _all(seen: Figures, told: Figures) -> str:
    text = f"{_part(told)} took all that waited ({told['mean_rows']:.1f} rows)"
    if told["mean_rows"] * told["batches"] / told["requests"] > told["mean_rows"] / _ALONE:
        wait = f"; only a delay could make them larger, at that much latency (service is {show_ns(seen['service_ns_p50'])})"
        return f"{text}: the load is too light for company{wait}"
    return f"{text}: nothing held them back but the load"


def _unbatched(seen: Figures, told: Figures) -> str:
    if seen["sequences"]:
        return f"{_part(told)} were made by the sequence batcher, whose rules are others: nothing is said of them"
    if seen["max_batch"] == 1:
        return f"{_part(told)} were single requests: max_batch_size is 0 or 1"
    return (
        f"{_part(told)} were single requests, with {told['mean_left']:.1f} rows left waiting: there is no dynamic_batching "
        f"in the configuration although max_batch_size is {seen['max_batch']}; add dynamic_batching {{ }}"
    )


_BY_RULE: dict[str, Callable[[Figures, Figures], str]] = {
    "full": _full, "preferred size": _preferred, "delay expired": _delay, "shape mismatch": _shapes, "client batch": _client,
    "bound early": _bound, "stalled": _stalled, "all waiting": _all, "unbatched": _unbatched,
}  # fmt: skip


def _beyond(seen: Figures) -> Iterator[str]:
    """What is no rule of one batch."""
    if stalls := seen["stalls"]:
        n, longest = seen["stall_count"], max(stalls, key=lambda s: s["idle_ns"])
        cause = (
            "a queue policy or priorities switch prefetch off, and a batcher that misses an instance's signal sleeps until the next "
            "arrival or for 500 ms: take the policy out, or keep arrivals coming"
            if not seen["prefetch"]
            else "no queue policy explains it: was the machine short of CPU?"
        )
        yield (
            f"{'once' if n == 1 else f'{n:,} times'} requests waited while an instance was free, for up to {show_ns(longest['idle_ns'])} "
            f"(at {show_ns(longest['start_ns'])} of the run): {cause}"
        )
    padding = seen["padding"]
    if padding is not None and padding["waste"] >= _WASTE:
        yield (
            f"lengths differ within batches: padded to the longest row they hold {padding['waste'] * 100:.0f} % padding; "
            "send similar lengths together, or pad to a few lengths"
        )
    if seen["never_executed"]:
        n = seen["never_executed"]
        yield f"{n} request{'s' if n > 1 else ''} never reached an execution (rejected, cancelled, or from the cache)"
    if seen["unknown_shapes"]:
        yield (
            f"{seen['unknown_shapes']} requests did not say their rows and shapes (another client's): they count as one row"
        )


def _gain(seen: Figures, told: Figures) -> str:
    """What a batch would have saved by taking those it left behind along."""
    cost, rows = seen["cost"], told["mean_rows"]
    larger = min(seen["max_batch"], rows + told["mean_left"])
    if cost is None or not cost["fixed_ns"] or larger <= rows:
        return ""
    now, then = (cost["fixed_ns"] / n + cost["row_ns"] for n in (rows, larger))
    return f" ({show_ns(now)} a row now, {show_ns(then)} in batches of {larger:.0f})"


def _part(told: Figures) -> str:
    n = told["batches"]
    return f"{told['share'] * 100:.0f} % of the batches ({n})"
