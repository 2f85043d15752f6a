"""Figures as a person reads them, each with its unit; what was not measured is a dash.

Used by every report.  This module must not know where a figure is shown.
"""

import math
from typing import Any

from loadgen.analysis.repeats import Stop
from loadgen.analysis.slo import Reason, Verdict
from loadgen.analysis.steady_state import State
from loadgen.analysis.words import amount
from loadgen.traffic.objective import DURATIONS, RATES, SHARES, TIMES
from loadgen.units import show_bytes, show_ns

NONE = "-"
_WITHIN = 1.96  # standard deviations: 95 % of Poisson plans lie within
_WHY = {
    Reason.TOO_CLOSE: "too close to the bound for any run of reasonable length to tell",
    Reason.NEVER: "no number of requests is enough to pass",
    Reason.UNKNOWN_ENDS: "it hangs on requests whose end is not known: repeat the run",
    Reason.NO_REQUESTS: "no request of it was judged",
    Reason.NO_STREAMS: "the run has no streams",
    Reason.NO_TOKENS: "no answer told its tokens",
    Reason.NO_BOUND: "no objective bounds a time of one request, e.g. ttft p95 < 500ms",
    Reason.NOT_REPORTED: "neither the server nor the run tells it",
}
_REASONS = 8  # for an end that are listed


def duration(ns: float | None) -> str:
    return NONE if ns is None else show_ns(ns)


def rate(per_s: float | None) -> str:
    """Three digits or more, never in powers of ten: 0.42, 9.71, 97.1, 971, 9712."""
    if per_s is None:
        return NONE
    return f"{per_s:.{0 if per_s >= 100 else 1 if per_s >= 10 else 2}f}"  # noqa: PLR2004 - digits


def share(part: float) -> str:
    return "<1%" if 0 < part < 0.01 else f"{part:.0%}"  # noqa: PLR2004 - one percent


def cores(used: float | None) -> str:
    """CPU as a share of one core: below one in percent."""
    if used is None:
        return f"{NONE} of a core"
    return f"{share(used)} of a core" if used < 1 else f"{used:.2g} cores"


def client_line(client: dict[str, Any]) -> str:
    """What the client says of itself, as one sentence without its full stop."""
    full = client["max_in_flight"]
    parts = [
        f"CPU {duration(client['cpu_ns_per_request'])} a request ({cores(client['cpu_share'])})",
        f"at most {NONE if full is None else full} request{'' if full == 1 else 's'} in flight",
        f"P99 of event loop lag {duration(client['loop_lag_ns']['p99'])}",
    ]
    if client["workers"] > 1:
        parts.append(f"{client['workers']} workers")
    parts += [
        f"{amount(client[key], noun)} {what}"
        for key, noun, what in (
            ("resent", "request", "sent a second time"),
            ("reconnects", "connection", "ended by the server"),
        )
        if client[key]
    ]
    if waits := client["conn_waits"]:
        parts.append(f"{amount(waits, 'wait')} for a connection")
    return ", ".join(parts)


def first_line(summary: dict[str, Any]) -> str:
    """What the first request of each kind took, and on each instance; "" where none was sent."""
    each = summary.get("first_each_ns", {})
    return ", ".join(
        f"{kind} {duration(ns)}"
        + (
            f" (at once on {len(each[kind])} instances: {', '.join(map(duration, each[kind]))})"
            if kind in each
            else ""
        )
        for kind, ns in summary["first_request_ns"].items()
    )


def time_line(server: dict[str, Any]) -> str:
    """Where a request's time at the server went, as one sentence without its full stop; "" where nothing tells."""
    split, there = server.get("split_ns") or {}, server.get("in_flight") or {}
    parts = [
        f"{words} {duration(split[key])}"
        for key, words in (("queue", "queue"), ("input", "input"), ("infer", "inference"), ("output", "output"),
                           ("frontend", "front end"))
        if split.get(key) is not None
    ]  # fmt: skip
    told = [f"a request's time: {', '.join(parts)}"] if parts else []
    if there.get("server") is not None and there.get("client") is not None:
        told.append(
            f"of {there['client']:.2f} requests in flight by our stamps {there['server']:.2f} were inside by its counters"
        )
    return "; ".join(told)


def use_line(server: dict[str, Any]) -> str:
    """How the server was used, as one sentence without its full stop; "" where nothing tells."""
    seen = server.get("watched") or {}
    parts = []
    if server.get("busy") is not None:
        parts.append(f"instances busy {share(server['busy'])} of the time")
    if seen.get("cpu_cores") is not None:
        parts.append(f"CPU {cores(seen['cpu_cores'])}, memory {show_bytes(seen['memory_bytes'])}")
    if gpu := _gpu_words(seen.get("gpu") or {}):
        parts.append(gpu)
    if seen.get("pending"):
        parts.append(f"pending {seen['pending']['mean']:g} on average, at most {seen['pending']['max']:g}")
    parts += [
        f"{amount(n, 'request')} refused ({reason})" for reason, n in (seen.get("rejected") or {}).items()
    ]
    if seen.get("resets"):
        parts.append(f"counters reset {amount(len(seen['resets']), 'time')}")
    return ", ".join(parts)


def model_lines(server: dict[str, Any]) -> list[str]:
    """What is told model by model: of ensembles and what they are made of, and of models that nobody asked for."""
    composing, others = server.get("composing") or {}, server.get("other_models") or {}
    lines = []
    for name, steps in (server.get("ensembles") or {}).items():
        told = "" if composing else "; the server tells no statistics of them"
        lines.append(
            f"{name} is an ensemble, without batches or queue of its own: it is made of {', '.join(steps)}{told}"
        )
    lines += [f"{name}: {_model_words(told)}" for name, told in composing.items()]
    return lines + [f"{name}, not asked for: {_model_words(told)}" for name, told in others.items()]


def _model_words(told: dict[str, Any]) -> str:
    mean = NONE if told["mean_batch"] is None else f"{told['mean_batch']:.2f}"
    busy = "" if told["busy"] is None else f", instances busy {share(told['busy'])} of the time"
    cached = "" if not told["cache_hits"] else f", {amount(told['cache_hits'], 'cache hit')}"
    return (
        f"mean batch {mean} items in {amount(told['execution_count'], 'execution')} of {amount(told['request_count'], 'request')}, "
        f"queue {duration(told['queue_ns_mean'])} and compute {duration(told['compute_ns_mean'])}{busy}{cached}"
    )


def _gpu_words(gpu: dict[str, Any]) -> str:
    parts = [f"busy {share(gpu['utilisation'])}"] if "utilisation" in gpu else []
    parts += [show_bytes(round(gpu["memory_bytes"]))] if "memory_bytes" in gpu else []
    parts += [f"{gpu['power_w']:.0f} W"] if "power_w" in gpu else []
    parts += [f"{gpu['energy_j_per_request']:.3g} J a request"] if "energy_j_per_request" in gpu else []
    return f"GPU {', '.join(parts)}" if parts else ""


_INSIDE = (
    "http_4xx",
    "http_5xx",
    "rejected",
)  # told by a status, or by words within an answer that began well


def statuses(error: str, numbers: dict[str, int]) -> str:
    """Status codes of an error with how many had each, where they differ; 0 is none at all."""
    told = {code: n for code, n in numbers.items() if code != "0"}
    shown = {code: f"{code}: {n}" if len(numbers) > 1 else code for code, n in told.items()}
    inside = [code for code in told if error in _INSIDE and code.startswith("2") and len(code) == 3]  # noqa: PLR2004 - HTTP
    parts = (
        ("status", [shown[code] for code in told if code not in inside]),
        ("inside answers with status", [shown[code] for code in inside]),
    )
    return "; ".join(f"{words} {', '.join(codes)}" for words, codes in parts if codes)


def figure(metric: str, value: float | None) -> str:
    """An objective's figure in its unit."""
    if value is None:
        return NONE
    if metric in DURATIONS:
        return show_ns(value)
    if metric == "joules a request":
        return f"{value:.3g} J"
    if metric in SHARES:
        return f"{value * 100:.3g} %"
    return f"{rate(value)}/s" if metric in RATES else f"{value:.2f}"


def tokens_from(streaming: dict[str, Any]) -> str:
    """Who counted the tokens, of how many streams."""
    told = {
        "usage": "the server's usage",
        "tokenizer": "a tokenizer",
        "chunks": "counting chunks",
        "unknown": "nobody",
    }
    parts = [f"{words} ({n})" for key, words in told.items() if (n := streaming["tokens_from"][key])]
    return " and ".join(parts) or "nobody"


def reasons(numbers: dict[str, int]) -> str:
    """Reasons with how many had each, the first few."""
    told = [f"{name} ({n})" for name, n in numbers.items()]
    more = [f"{len(told) - _REASONS} other reasons"] if len(told) > _REASONS else []
    return ", ".join(told[:_REASONS] + more)


def stream_line(streaming: dict[str, Any]) -> str:
    """What was streamed, as one sentence without its full stop."""
    out, into = streaming["tokens_out"], streaming["tokens_in"]
    parts = [f"{amount(streaming['n'], 'stream')} in {amount(streaming['chunks'], 'chunk')}"]
    if out["n"]:
        parts.append(f"{out['sum']} tokens out (mean {out['mean']:.3g}), counted by {tokens_from(streaming)}")
    if into["n"]:
        parts.append(f"{into['sum']} tokens in, {rate(streaming['input_tokens_per_s'])}/s")
    if streaming["finish"]:
        parts.append("ended by " + reasons(streaming["finish"]))
    if streaming["planned_cancels"]:
        parts.append(f"{amount(streaming['planned_cancels'], 'request')} cancelled as the profile asks")
    return ", ".join(parts)


def stream_notes(streaming: dict[str, Any]) -> dict[str, str]:
    """What belongs to figures of tokens, by its name: sentences without their full stop, where there is something to say."""
    apart, lengths, cached = (
        streaming[key] for key in ("usage_and_chunks", "output_lengths", "cached_tokens")
    )
    found = {}
    if apart["differ"]:
        found["counts"] = (
            f"usage counts {amount(apart['tokens'], 'token')} where {amount(apart['chunks'], 'chunk')} came, in "
            f"{apart['differ']} of {amount(apart['n'], 'stream')}: TPOT and tok/s rest on usage, first tokens and gaps on chunks"
        )
    if lengths["n"]:
        found["lengths"] = (
            f"{lengths['asked_mean']:.3g} tokens asked at most, {lengths['delivered_mean']:.3g} delivered (means)"
            + (f", {lengths['short']} of {lengths['bound']} stopped short" if lengths["bound"] else "")
            + (f", {lengths['beyond']} went beyond" if lengths["beyond"] else "")
        )
    if cached["n"]:
        found["cached"] = (
            f"{cached['sum']} tokens in ({cached['share'] * 100:.3g} %) came from the server's prefix cache, as "
            f"{amount(cached['n'], 'stream')} told"
        )
    return found


def goodput_line(goodput: dict[str, Any]) -> str:
    """How many requests met every bound, as one sentence without its full stop."""
    tokens = goodput["output_tokens_per_s"]
    also = f", {rate(tokens)} output tokens/s in them" if tokens is not None else ""
    short = f" ({goodput['stopped_short']} stopped short)" if goodput["stopped_short"] else ""
    good = NONE if goodput["share"] is None else f"{goodput['share'] * 100:.3g} %"
    return (
        f"{good} ({goodput['good']} of {amount(goodput['n'], 'request')}) were good{short}, "
        f"{rate(goodput['requests_per_s'])} requests/s{also}: within {' and '.join(goodput['bounds'])}"
    )


def network_line(network: dict[str, Any]) -> str:
    """The conditions, and what making them cost, as one sentence without its full stop."""
    parts = []
    if network["delay_ns"]:
        jitter = f" +- {show_ns(network['jitter_ns'])}" if network["jitter_ns"] else ""
        parts.append(
            f"{show_ns(network['delay_ns'])}{jitter} each way (a round trip takes {show_ns(network['round_trip_ns'])} more)"
        )
    if network["bytes_per_s"]:
        parts.append(f"{show_bytes(network['bytes_per_s'])}/s each way")
    cost, relay = network.get("calibration"), network.get("relay")
    if cost:
        parts.append(
            f"the relay itself adds {show_ns(cost['added_p50_ns'])} (P50) and {show_ns(cost['added_p99_ns'])} (P99) "
            "to a round trip"
        )
    if relay and relay["late_ns"]["n"]:
        parts.append(f"was late by {show_ns(relay['late_ns']['p99'])} (P99)")
    return ", ".join(parts)


def observed(row: dict[str, Any]) -> str:
    """What an objective's figure came to; one that lost requests reach into never came to an end."""
    lost = row["observed"] is None and row["n"] > 0 and row["metric"] in TIMES
    return "no answer" if lost else figure(row["metric"], row["observed"])


def interval(row: dict[str, Any]) -> str:
    """From where to where an objective's figure lies in 95 of 100 runs; "" where there is no interval."""
    if row["interval"] is None:
        return ""
    low, high = (None if end is None else figure(row["metric"], end) for end in row["interval"])
    # without a method it is what may yet come of some requests: no chance in it
    covers = f"{100 * row['level']:.4g} %: " if row["method"] is not None else ""
    if low is None and high is None:
        return "unbounded"
    if high is None:
        return f"{covers}at least {low}"
    return f"{covers}{low} to {high}" if low is not None else f"{covers}at most {high}"


def method(row: dict[str, Any]) -> str:
    """Where an interval comes from, and how many independent requests would say as much; "" where there is none."""
    if row["method"] is None or row["effective_n"] is None:
        return ""
    return f"{row['method']}, effective n {row['effective_n']:,.0f}"


def interval_lines(summary: dict[str, Any]) -> list[str]:
    """Of each measured phase its figures with their intervals; what a run cannot tell is said with what is missing."""
    rows = summary["intervals"]
    level = f"{100 * rows[0]['level']:.4g} %" if rows else ""
    return [
        f"{phase}: {', '.join(_with_interval(row) for row in rows if row['phase'] == phase and row['n'])} ({level} intervals)"
        for phase in dict.fromkeys(row["phase"] for row in rows if row["n"])
    ]


def _with_interval(row: dict[str, Any]) -> str:
    name = {"latency p50": "P50", "latency p99": "P99", "latency mean": "mean"}.get(
        row["figure"], row["figure"]
    )
    low, high = (None if end is None else figure(row["metric"], end) for end in (row["low"], row["high"]))
    value = figure(row["metric"], row["value"])
    if row["method"] is None and low == high:
        return f"{name} {value}" if name != "requests/s" else value
    value = value if name == "requests/s" else f"{name} {value}"
    if low is not None and high is not None:
        return f"{value} ({low.removesuffix('/s') if name == 'requests/s' else low} to {high})"
    more = f"; about {timespan(row['more_s'])} more at this rate would tell" if row["more_s"] else ""
    said = f"at least {low}" if low is not None else f"at most {high}" if high is not None else "not known"
    return f"{value} ({said}{more})"


def until_sure_line(summary: dict[str, Any]) -> str:
    """Why no more runs were made until all objectives were decided, and what that rests on: one sentence."""
    until, runs = summary["until_sure"], len(summary.get("runs", ())) or 1
    looks = until["looks"]
    limit = f"within {duration(until['limit_ns'])}"
    why = {
        Stop.DECIDED: f"decided after {amount(runs, 'run')}",
        Stop.TIME_LIMIT: f"undecided after {amount(runs, 'run')}: no other fits {limit}",
        Stop.NOT_VALID: f"ended with run {runs}, which is not valid: neither is what is judged with it",
        Stop.UNDECIDABLE: f"ended after {amount(runs, 'run')}: no number of runs decides the rest",
        None: f"cut short after {amount(runs, 'run')}",
    }[until["stop"] and Stop(until["stop"])]
    more = looks[-1]["more_runs"] if looks and until["stop"] != Stop.DECIDED else None
    would = f"; about {amount(more, 'more run')} would tell" if more else ""
    together = f"all {len(looks)} looks together" if len(looks) > 1 else "looked at once"
    rule = (
        f"wrong in at most {100 * until['error_rate']:g} % of cases, {together} ({until['method']}, at most "
        f"{amount(until['most_runs'], 'run')} {limit}, {100 * (1 - until['alpha']):.4g} % intervals)"
    )
    return f"{why}{would}; {rule}"


RUN_HEAD = ["ok", "requests/s", "P50", "P99"]


def run_cells(run: dict[str, Any]) -> list[str]:
    """One of several runs, under RUN_HEAD."""
    return [str(run["ok"]), rate(run["achieved_per_s"]), duration(run["p50_ns"]), duration(run["p99_ns"])]


def spread_rows(between: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """Mean and standard deviation between runs, under RUN_HEAD; none of a single run."""
    if not any(between.values()):
        return []
    shown = {"achieved_per_s": rate, "p50_ns": duration, "p99_ns": duration}
    return [
        (
            name,
            [
                NONE,
                *(NONE if (held := between[key]) is None else show(held[of]) for key, show in shown.items()),
            ],
        )
        for name, of in (("mean of runs", "mean"), ("standard deviation", "standard_deviation"))
    ]


def note(row: dict[str, Any]) -> str:
    """Of which phase an objective's row is, what became of its requests, and what would settle it; "" for nothing."""
    parts = [f"in {row['phase']}, the worst of {row['phases']} phases"] if row["phases"] > 1 else []
    if n := row["lost"]:
        parts.append(
            f"{amount(n, 'request')} never succeeded and {'counts' if n == 1 else 'count'} as infinitely late"
        )
    if row["unknown"] is None:
        parts.append("how many requests were on their way when the run was killed is not known")
    elif n := row["unknown"]:
        parts.append(f"how {n} more would have ended is not known")
    open_above = (row.get("interval") or (None, 0))[1] is None
    if row.get("verdict") == Verdict.PASS and open_above and "<" in row["objective"]:
        parts.append("no request was beyond it")
    return "; ".join([*parts, *settling(row)])


def settling(row: dict[str, Any]) -> list[str]:
    """Why an objective is undecided and what would settle it: none or one sentence without its full stop."""
    if row["reason"] is None:
        return []
    more = f"about {timespan(row['more_s'])} more at this rate would tell" if row["more_s"] else ""
    if row["reason"] == Reason.MORE_REQUESTS:
        was = "was" if row["n"] == 1 else "were"
        return [f"at least {row['needed']} requests are needed to pass, {row['n']} {was} judged"] + [
            more
        ] * bool(more)
    if row["reason"] == Reason.MORE_DATA:
        return [more or "a longer run, or several, would tell"]
    if row["reason"] == Reason.ENSEMBLE:
        value = {name: figure(row["metric"], held) for name, held in (row["models"] or {}).items()}
        each = ", ".join(f"{name} {held}" for name, held in value.items())
        return [f"an ensemble has no batches of its own; its models: {each or 'not told'}"]
    return [_WHY[row["reason"]]]


def timespan(seconds: float) -> str:
    """6 minutes; whole numbers of the largest unit of which there are two."""
    for unit, size in (("hour", 3600), ("minute", 60)):
        if seconds >= 2 * size:
            return amount(round(seconds / size), unit)
    return amount(max(1, round(seconds)), "second")


def drain_lines(summary: dict[str, Any]) -> list[str]:
    """How long the last answers of each measured phase came after its load, and the rate with that time in it."""
    return [
        f"{phase['name']}: the last request ended {duration(phase['drain_ns'])} after the load; "
        f"{rate(phase['achieved_with_drain_per_s'])} requests/s over both"
        for phase in summary["phases"]
        if phase["measured"] and phase["drain_ns"] is not None
    ]


_STEADY = {
    State.SETTLED: "steady from its start",
    State.WARMING_UP: "steady only later",
    State.DRIFT: "no steady state: it drifts",
    State.NEVER_SETTLED: "no steady state: it never settled",
    State.TOO_LITTLE_DATA: "not looked for: too few requests",
    State.NOT_CONSTANT: "not looked for: the planned rate is not constant",
}


def steady_lines(summary: dict[str, Any]) -> list[str]:
    """The declared and the detected steady window of each measured phase, with the latencies in each."""
    return [
        f"{phase['name']}: {_STEADY[State(steady['state'])]}; declared {_stretch(steady['declared'])}; "
        f"detected {_stretch(steady['detected']) if steady['detected'] else 'none'}"
        for phase in summary["phases"]
        if (steady := phase.get("steady"))
    ]


def _stretch(window: dict[str, Any]) -> str:
    return (
        f"{window['start_ns'] / 1e9:.2f} to {window['end_ns'] / 1e9:.2f} s, P50 {duration(window['p50_ns'])}, "
        f"P99 {duration(window['p99_ns'])}"
    )


def burst_line(plan: dict[str, Any]) -> str:
    """How bursty planned arrivals are, as one sentence without its full stop."""
    cv, dispersion = (NONE if plan[key] is None else f"{plan[key]:.2f}" for key in ("gap_cv", "dispersion"))
    bins = plan.get("bins") or 0  # older runs do not tell
    chance = f"1, 1 +- {_WITHIN * math.sqrt(2 / (bins - 1)):.1g} in {bins:,} bins" if bins > 1 else "both 1"
    poisson = f"Poisson, constant rate: {chance if plan['dispersion'] is not None else 'both 1'}"
    return f"gap CV {cv}, dispersion {dispersion} ({poisson}), largest burst {plan['largest_burst']:,}"


def input_lines(summary: dict[str, Any]) -> list[str]:
    """How many different inputs each kind sent, and what a cache on the way would have made of that."""
    return [_input_line(row) for row in summary.get("inputs") or ()]


def _input_line(row: dict[str, Any]) -> str:
    n, repeated, prefix = row["requests"], row["repeated"], row.get("shared_prefix")
    line = f"{row['kind']}: {n:,} requests had {row['distinct']:,} distinct inputs, "
    if repeated:
        line += f"{share(repeated / n)} repeated an earlier one: a response or prefix cache would know them"
    else:
        line += "none was sent before"
    if prefix and prefix["share"] >= 0.01:  # noqa: PLR2004 - one percent
        line += f"; prompts begin alike for {share(prefix['share'])} of their length, which a prefix cache would keep"
    return line


def burst_lines(summary: dict[str, Any]) -> list[str]:
    """How bursty the plan of each open phase was."""
    phases = [phase for phase in summary["phases"] if phase.get("plan")]
    return [f"{phase['name']}: {burst_line(phase['plan'])}" for phase in phases]
