"""What a cold start was: from stamps and answers to stages, answers until warm, and what is doubtful.

    stages: process start -> live -> server ready -> model ready -> first answer, and the load call by itself
    shapes: of each kind and length the first answer, the steady one, and how many answers lie between

Some repeats give a least, a middle and a greatest figure, never a percentile beyond.  Pure: it reads what
coldstart.json holds.  It must not know servers, how a cache was dropped or how a request is sent.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from loadgen.histogram import nearest_rank
from loadgen.records import Doubt

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

IN_A_ROW = 3  # answers within the margin that make it warm; two an instance when that is more
FEW_REPEATS = 5
_STILL_CACHED = 0.1  # of the files, above which a dropped cache was not
OK, TIMEOUT = "ok", "timeout"

STAGES = {  # key of repeats[].stages_ns: its words, in the order of events
    "live": "start to live",  # of the server's process
    "server_ready": "start to server ready",
    "model_ready": "start to model ready",
    "start_to_answer": "start to first answer",
    "unload": "unload to unavailable",
    "load_call": "load call",
    "load_to_ready": "load to model ready",
    "load_to_answer": "load to first answer",
    "first_answer": "first answer",  # alone
    "reload_to_ready": "reload, same process",  # where code and caches of the process are warm
    "reload_first_answer": "first answer after it",
}
MEMORY = {"before": "memory before the load", "loaded": "memory, model ready", "warm": "memory, all asked",
          "gpu_before": "GPU memory before the load", "gpu_loaded": "GPU memory, model ready",
          "gpu_warm": "GPU memory, all asked"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Spread:
    """Of `n` figures the least, the middle (nearest rank) and the greatest."""

    n: int
    min: float
    median: float
    max: float


def spread(values: Sequence[float | None]) -> dict[str, Any] | None:
    """The Spread of those that are there, JSON-ready; None when none is."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return None
    return asdict(Spread(len(known), known[0], nearest_rank(known, 0.5), known[-1]))


@dataclass(frozen=True, slots=True)
class Warmth:
    """One sequence of answers of one shape.  Nanoseconds; None where nothing can be said.

    `answers_to_warm` is the place of the first of the answers in a row that lie within the margin: 0 was warm from
    the first.  `cold` counts the answers before it that were slower or never came, `timeouts` those of them
    given up by the client; `cost_ns` is what they took beyond a steady answer each.
    """

    first_ns: int | None
    steady_ns: int | None
    answers_to_warm: int | None
    cold: int
    timeouts: int
    errors: int
    cost_ns: int | None
    slowest_after_ns: int | None


def warmth(
    latency_ns: Sequence[int], outcomes: Sequence[str], *, within: float = 0.25, instances: int = 1
) -> Warmth:
    """How cold these answers, in the order they were sent, began: `within` 0.25 allows 1.25 times the steady one.

    Steady is the median of the good ones in the second half, so a sequence that ends before it is warm says so
    (`answers_to_warm` None) or calls warm what it ended with: ask for enough of them.
    """
    n = len(latency_ns)
    good = [o == OK for o in outcomes]
    row = max(IN_A_ROW, 2 * instances)
    tail = sorted(latency_ns[i] for i in range(n // 2, n) if good[i])
    first = latency_ns[0] if n and good[0] else None
    if not tail:
        lost = sum(o == TIMEOUT for o in outcomes)
        return Warmth(first, None, None, n, lost, n - sum(good) - lost, None, None)
    steady = nearest_rank(tail, 0.5)
    warm = [good[i] and latency_ns[i] <= (1 + within) * steady for i in range(n)]
    at = next((i for i in range(n - row + 1) if all(warm[i : i + row])), None)
    before = range(n if at is None else at)
    cold = [i for i in before if not warm[i]]
    lost = sum(outcomes[i] == TIMEOUT for i in cold)
    after = [latency_ns[i] for i in range(at, n) if good[i]] if at is not None else []
    return Warmth(
        first_ns=first,
        steady_ns=steady,
        answers_to_warm=at,
        cold=len(cold),
        timeouts=lost,
        errors=sum(not good[i] for i in cold) - lost,
        cost_ns=sum(max(0, latency_ns[i] - steady) for i in before),
        slowest_after_ns=max(after, default=None),
    )


def load_fault(*, ready_before: bool, counted: int | None, warmup_rows: int) -> str | None:
    """Why a load that the server called done was none; None when it was one.

    A model that is loaded already is not loaded again as long as its files stay the same: the call returns at
    once.  Right after a true load the counters hold the warm-up's rows and nothing else.
    """
    if ready_before:
        return "the model was still ready when it was asked to load: that load did nothing"
    if counted is not None and counted > warmup_rows:
        return (
            f"right after the load the model counts {counted} inferences where a fresh one has {warmup_rows}: "
            "it was not loaded anew, or others sent to it"
        )
    return None


def summarise(cold: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of coldstart.json: for each condition the spread of every stage, memory and shape; doubts."""
    conditions = []
    for condition in cold["conditions"]:
        repeats = [r for r in cold["repeats"] if r["condition"] == condition["name"]]
        if repeats:
            conditions.append(_condition(condition, repeats, cold))
    return {"conditions": conditions, "doubts": [asdict(d) for d in _doubts(cold, conditions)]}


def answered(cold: Mapping[str, Any]) -> bool:
    """Whether any request of any repeat was answered."""
    return any(OK in shape["outcomes"] for repeat in cold["repeats"] for shape in repeat["shapes"])


def _condition(
    condition: Mapping[str, Any], repeats: Sequence[Mapping[str, Any]], cold: Mapping[str, Any]
) -> dict[str, Any]:
    stages = {key: spread([r["stages_ns"].get(key) for r in repeats]) for key in STAGES}
    memory = {key: spread([r["memory_bytes"].get(key) for r in repeats]) for key in MEMORY}
    shapes: dict[tuple[str, int | None, int], list[Warmth]] = defaultdict(list)
    late: dict[tuple[str, int | None, int], int] = defaultdict(int)
    for repeat in repeats:
        for shape in repeat["shapes"]:
            key = (shape["kind"], shape["length"], shape["batch"])
            shapes[key].append(
                warmth(
                    shape["latency_ns"], shape["outcomes"], within=cold["within"], instances=cold["instances"]
                )
            )
            late[key] += sum(ns > shape["timeout_ns"] for ns in shape["latency_ns"])
    return {
        **condition,
        "repeats": len(repeats),
        "cached_share": spread([r.get("cached_share") for r in repeats]),
        "stages_ns": {key: value for key, value in stages.items() if value},
        "memory_bytes": {key: value for key, value in memory.items() if value},
        "shapes": [_shape(key, found, late[key]) for key, found in shapes.items()],
    }


def _shape(key: tuple[str, int | None, int], found: Sequence[Warmth], late: int) -> dict[str, Any]:
    return {
        "kind": key[0], "length": key[1], "batch": key[2],
        "first_ns": spread([w.first_ns for w in found]),
        "steady_ns": spread([w.steady_ns for w in found]),
        "answers_to_warm": spread([w.answers_to_warm for w in found]),
        "never_warm": sum(w.answers_to_warm is None for w in found),
        "cold_answers": spread([w.cold for w in found]),
        "cold_timeouts": sum(w.timeouts for w in found),
        "cold_errors": sum(w.errors for w in found),
        "beyond_kinds_timeout": late,
        "cost_ns": spread([w.cost_ns for w in found]),
        "slowest_after_ns": spread([w.slowest_after_ns for w in found]),
    }  # fmt: skip


def _doubts(cold: Mapping[str, Any], conditions: Sequence[Mapping[str, Any]]) -> list[Doubt]:
    doubts = []
    if rejected := cold["rejected"]:
        doubts.append(Doubt("noop_load", f"{len(rejected)} loads were no cold start and are in no figure: {rejected[0]['why']}",
                            "look whether the server unloads at all, and whether others use the model"))  # fmt: skip
    if cold["mode"] == "first requests":
        doubts.append(Doubt("no_control", f"the server lets nobody load and unload models ({cold['no_control']}): these are the first requests "
                            "of this measurement, not of the model; whether it was cold is unknown",
                            "start it with explicit model control, or measure the embedded server"))  # fmt: skip
    elif any(c["repeats"] < FEW_REPEATS for c in conditions):
        least = min(c["repeats"] for c in conditions)
        doubts.append(Doubt("few_repeats", f"{least} repeats of a condition: their spread is hardly known",
                            f"measure with --repeats {FEW_REPEATS} or more"))  # fmt: skip
    for one in conditions:
        share = (one["cached_share"] or {}).get("median")
        if one["cache"] == "dropped" and share is not None and share > _STILL_CACHED:
            doubts.append(Doubt("still_cached", f"{one['name']}: {share:.0%} of the files were still in the page cache",
                                "another process holds them; end it, or measure elsewhere"))  # fmt: skip
        doubts += _shape_doubts(one, cold["instances"])
    return doubts


def _shape_doubts(condition: Mapping[str, Any], instances: int) -> list[Doubt]:
    doubts = []
    for at, shape in enumerate(condition["shapes"]):
        where = f"{condition['name']}, {shape_name(shape)}"
        if lost := shape["cold_timeouts"]:
            doubts.append(Doubt("cold_timeouts", f"{where}: {lost} timeouts, all in the cold phase, before the answers settled",
                                "raise --timeout to see how long they take, and warm the model up"))  # fmt: skip
        if lost := shape["cold_errors"]:
            doubts.append(Doubt("cold_errors", f"{where}: {lost} answers were errors before they settled",
                                "see the server's log: does the model take this length and batch?"))  # fmt: skip
        if late := shape["beyond_kinds_timeout"]:
            doubts.append(Doubt("beyond_timeout", f"{where}: {late} answers took longer than the kind's own timeout: clients would have given up",
                                "warm up, or give the first requests more time"))  # fmt: skip
        if shape["never_warm"]:
            doubts.append(Doubt("never_warm", f"{where}: {shape['never_warm']} of {condition['repeats']} repeats did not settle",
                                "ask for more answers (--answers), or allow more spread (--within)"))  # fmt: skip
        cold = (shape["cold_answers"] or {}).get("max", 0)
        if at == 0 and instances > 1 and 0 < cold < instances:
            doubts.append(Doubt("instances_missed", f"{where}: {instances} instances, so {instances} cold answers were expected; at most {cold:.0f} came",
                                "some instances may not have been reached: ask for more answers (--answers)"))  # fmt: skip
    return doubts


def shape_name(shape: Mapping[str, Any]) -> str:
    """As a person reads it: "short, length 18, batch 1"."""
    length = "" if shape["length"] is None else f", length {shape['length']}"
    return f"{shape['kind']}{length}" + (f", batch {shape['batch']}" if shape["batch"] > 1 else "")
