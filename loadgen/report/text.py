"""A summary that a person reads in ten seconds, at 80 columns, also through a pipe or in a dumb terminal.

Takes the dict of summary.json and nothing else.  Everything that came from a server or a profile (names,
error texts) is printed as plain text, never as markup.  This module must not compute figures.
"""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from loadgen.analysis.slo import Verdict
from loadgen.analysis.words import amount
from loadgen.report.table import Row, print_table
from loadgen.report.words import (
    NONE,
    RUN_HEAD,
    burst_lines,
    client_line,
    drain_lines,
    duration,
    first_line,
    goodput_line,
    input_lines,
    interval,
    interval_lines,
    method,
    model_lines,
    network_line,
    note,
    observed,
    rate,
    run_cells,
    share,
    spread_rows,
    statuses,
    stream_line,
    stream_notes,
    time_line,
    until_sure_line,
    use_line,
)
from loadgen.runfile import REPORT

_MOST_BATCHES = 8
_BAR = 24
_MOST_COLUMNS, _FULL = 7, 80  # counts and rates in one table, as long as it fits
_MOST_RUNS = 20
_STYLE = {Verdict.PASS: "green", Verdict.FAIL: "bold red", Verdict.INCONCLUSIVE: "yellow"}


def print_summary(summary: dict[str, Any], console: Console, path: Path | None = None) -> None:
    """Prints the verdict, latencies, counts, server, objectives and doubts, and where the report lies.

    `path` is the run folder, or the page itself.
    """
    summary = _printable(summary, console.encoding)
    _head(summary, console)
    _latencies(summary, console)
    _repeats(summary, console)
    _streams(summary, console)
    _counts(summary, console)
    _plan(summary, console)
    _errors(summary["total"]["errors"], console)
    _server(summary["server"], console)
    _client(summary, console)
    _objectives(summary["slo"], console)
    if "until_sure" in summary:
        console.print(Text(until_sure_line(summary)))
    _doubts(summary["doubts"], console)
    if path is not None:
        console.print()
        page = str(path / REPORT if path.is_dir() else path)
        # one unbroken line, so that it can be clicked and copied
        console.print(Text(_printable(f"report  {page}", console.encoding)), soft_wrap=True)


def print_verdicts(summary: dict[str, Any], console: Console) -> None:
    """Only whether the run is valid, the objectives and the doubts."""
    summary = _printable(summary, console.encoding)
    _head(summary, console)
    _objectives(summary["slo"], console)
    _doubts(summary["doubts"], console)


def _printable(value: Any, encoding: str) -> Any:
    """All texts on one line, in what the terminal can write, without control characters to steer it."""
    if isinstance(value, dict):
        return {_printable(key, encoding): _printable(held, encoding) for key, held in value.items()}
    if isinstance(value, list):
        return [_printable(held, encoding) for held in value]
    if isinstance(value, str):
        line = "".join(c if c.isprintable() else " " for c in value).strip()
        return line.encode(encoding, "replace").decode(encoding)
    return value


def _head(summary: dict[str, Any], console: Console) -> None:
    run, valid = summary["run"], summary["valid"]
    n = len(summary["doubts"])
    doubts = f", {n} doubt{'s' if n > 1 else ''} below" if n else ""
    word = f"valid{doubts}" if valid else f"NOT VALID{doubts}"
    states = [amount(len(summary["runs"]), "run")] if "runs" in summary else []
    states += [] if run["status"] == "finished" else [run["status"]]
    state = f" ({', '.join(states)})" if states else ""
    console.print(
        Text.assemble(
            (word, "bold green" if valid else "bold red"),
            f"  {run['profile']} on {run['target']}{state}",
        )
    )


def _rows(summary: dict[str, Any]) -> list[tuple[str, dict[str, Any], bool]]:
    if "runs" in summary:  # their phases are as many times as many
        return [("all runs", summary["total"], True)]
    phases = [
        (phase["name"] + ("" if phase["measured"] else " (warm-up)"), phase, phase["measured"])
        for phase in summary["phases"]
    ]
    measured = sum(phase["measured"] for phase in summary["phases"])
    return phases + ([("all measured", summary["total"], True)] if measured > 1 else [])


def _latencies(summary: dict[str, Any], console: Console) -> None:
    head = Row("latency from due", ["n", "P50", "P90", "P99", "max", "service P99", "lag P99"])
    rows = [Row(name, _times(figures), dim=not measured) for name, figures, measured in _rows(summary)]
    kinds = summary["total"]["by_kind"]
    if len(kinds) > 1:
        rows += [Row(name, _times(kind), apart=not at) for at, (name, kind) in enumerate(kinds.items())]
    print_table(console, head, rows)
    if lines := interval_lines(summary):
        console.print()
    for line in lines:
        console.print(Text(line))


def _repeats(summary: dict[str, Any], console: Console) -> None:
    """Each of several runs by itself, and the spread between them."""
    runs, spread = summary.get("runs", ()), summary.get("between_runs", {})
    rows = [Row(f"run {number}{'' if run['valid'] else ' (not valid)'}", run_cells(run))
            for number, run in enumerate(runs[:_MOST_RUNS], 1)]  # fmt: skip
    for at, (name, cells) in enumerate(spread_rows(spread)):
        rows.append(Row(name, cells, apart=not at))
    if runs:
        print_table(console, Row("each run", RUN_HEAD), rows)
    if len(runs) > _MOST_RUNS:
        console.print(Text(f"{len(runs) - _MOST_RUNS} more runs are in summary.json", style="dim"))


def _streams(summary: dict[str, Any], console: Console) -> None:
    """First tokens, then tokens; only of runs with streams."""
    whole = summary["total"].get("streaming")
    if whole is None:
        return
    shown = [(name, figures["streaming"], measured) for name, figures, measured in _rows(summary)]
    rows = [Row(name, _first_tokens(one), dim=not measured) for name, one, measured in shown]
    tokens = [Row(name, _tokens(one), dim=not measured) for name, one, measured in shown]
    if len(whole["by_kind"]) > 1:
        kinds = list(whole["by_kind"].items())
        rows += [Row(name, _first_tokens(one), apart=not at) for at, (name, one) in enumerate(kinds)]
        tokens += [Row(name, _tokens(one), apart=not at) for at, (name, one) in enumerate(kinds)]
    head = ["n", "P50", "P90", "P99", "sent P50", "sent P99", "content P50"]
    print_table(console, Row("first token from due", head), rows)
    head = ["TPOT P50", "P99", "gap P50", "P99", "tok/s user", "tok/s", "peak"]
    print_table(console, Row("tokens, chunk gaps", head), tokens)
    console.print()
    console.print(Text(f"streams  {stream_line(whole)}"))
    for name, words in stream_notes(whole).items():
        console.print(Text(f"{name:<8} {words}"))
    if whole["goodput"] is not None:
        console.print(Text(f"goodput  {goodput_line(whole['goodput'])}"))


def _first_tokens(streaming: dict[str, Any]) -> list[str]:
    ttft = [duration(streaming["ttft_ns"][key]) for key in ("p50", "p90", "p99")]
    sent = [duration(streaming["ttft_from_sent_ns"][key]) for key in ("p50", "p99")]
    return [str(streaming["ttft_ns"]["n"]), *ttft, *sent, duration(streaming["first_content_ns"]["p50"])]


def _tokens(streaming: dict[str, Any]) -> list[str]:
    times = [duration(streaming[key][q]) for key in ("tpot_ns", "chunk_gap_ns") for q in ("p50", "p99")]
    whole = [rate(streaming.get(key)) for key in ("output_tokens_per_s", "peak_output_tokens_per_s")]
    return [*times, rate(streaming["output_tokens_per_s_per_user"]["p50"]), *whole]


def _times(figures: dict[str, Any]) -> list[str]:
    latency = figures["latency_ns"]
    of_latency = [duration(latency[key]) for key in ("p50", "p90", "p99", "max")]
    others = [duration(figures[key]["p99"]) for key in ("service_ns", "lag_ns")]
    return [str(latency["n"]), *of_latency, *others]


def _counts(summary: dict[str, Any], console: Console) -> None:
    batches = {kind["batch"] for kind in summary["total"]["by_kind"].values()}
    items, counted = bool(batches - {1, None}), [figures["counts"] for _, figures, _ in _rows(summary)]
    trouble = [
        key
        for key in ("failed", "timeout", "rejected", "dropped", "cancelled", "planned_cancels", "unknown")
        if key == "failed" or any(counts.get(key) for counts in counted)
    ]
    rates = ["asked", "achieved", *(["items/s", "batch"] if items else [])]
    # columns that would only repeat the next one are left out
    unsent = any(counts["tried"] != counts["sent"] for counts in counted)
    short = any(counts["planned"] > counts["tried"] + counts["dropped"] for counts in counted)
    outcomes = [*(["planned"] if short else []), *(["tried"] if unsent else []), "sent", "ok", *trouble]
    one = len(rates) + len(outcomes) <= _MOST_COLUMNS and console.width >= _FULL
    groups = [[*rates, *outcomes]] if one else [rates, outcomes]
    for group in groups:
        rows = []
        for name, figures, measured in _rows(summary):
            cells = _rates(figures) | {key: str(figures["counts"].get(key, 0)) for key in outcomes}
            rows.append(Row(name, [cells[key] for key in group], dim=not measured))
        head = ["planned cancels" if key == "planned_cancels" else key for key in group]
        print_table(console, Row("requests" if group is outcomes else "requests/s", head), rows)


def _plan(summary: dict[str, Any], console: Console) -> None:
    if "runs" in summary:
        return
    lines = [f"drain  {line}" for line in drain_lines(summary)]
    lines += [f"plan  {line}" for line in burst_lines(summary)]
    for at, line in enumerate(lines):
        if not at:
            console.print()
        console.print(Text(line))


def _rates(figures: dict[str, Any]) -> dict[str, str]:
    """requests/s and items/s under their names, and the batch (items a request) that lies between them."""
    asked = rate(figures["offered_per_s"])
    if figures.get("loop") == "closed":
        asked = f"{figures['users']} user{'s' if figures['users'] != 1 else ''}"
    batches = sorted({kind["batch"] for kind in figures["by_kind"].values() if kind["batch"]})
    return {
        "asked": asked,
        "achieved": rate(figures["achieved_per_s"]),
        "items/s": rate(figures["items_per_s"]),
        "batch": _span(batches),
    }


def _span(numbers: list[int]) -> str:
    if not numbers:
        return NONE
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"


def _errors(errors: dict[str, Any], console: Console) -> None:
    if not errors:
        return
    console.print()
    for name, error in errors.items():
        codes = statuses(name, error["status"])
        status = f" ({codes})" if codes else ""
        after = error["service_ns"]["p50"]
        when = f", half of them within {duration(after)}" if after is not None else ""
        more = (
            f" (and {amount(error['different_texts'] - 1, 'other text')})"
            if error["different_texts"] > 1
            else ""
        )
        text = f": {error['text']}{more}" if error["text"] else ""
        console.print(Text(f"{error['n']} x {name}{status}{when}{text}", style="red"))


def _server(server: dict[str, Any], console: Console) -> None:
    sizes = server["batch_sizes"]
    if server["cache_hits"]:
        console.print()
        told = f"{server['cache_hits']} of {server['request_count']} requests ({share(server['cache_hits'] / max(1, server['request_count']))})"
        console.print(Text(f"server  {told} were answered from its response cache"))
    for line in model_lines(server):
        console.print(Text(f"server  {line}"))
    if not sizes:
        for line in filter(None, (time_line(server), use_line(server))) if server.get("ensembles") else ():
            console.print(Text(f"server  {line}"))
        return
    console.print()
    mean = "-" if server["mean_batch"] is None else f"{server['mean_batch']:.2f}"
    console.print(
        Text(
            f"server  mean batch {mean} items in {amount(server['execution_count'], 'execution')}, "
            f"queue {duration(server['queue_ns_mean'])} and compute {duration(server['compute_ns_mean'])} "
            "(means of a request)"
        )
    )
    bars = [(size, n) for size, n in sizes.items()]
    shown = bars if len(bars) <= _MOST_BATCHES else sorted(bars, key=lambda b: -b[1])[:_MOST_BATCHES]
    total, most = sum(n for _, n in bars), max(n for _, n in bars)
    for size, n in sorted(shown, key=lambda b: int(b[0])):
        bar = "#" * max(1, round(n / most * _BAR))
        took = (server["by_batch"].get(size) or {}).get("mean_ns")
        each = "" if took is None else f", {duration(took)} each"
        console.print(
            Text(f"  batch of {size:>3}  {bar:<{_BAR}} {amount(n, 'execution')}, {share(n / total)}{each}")
        )
    if len(shown) < len(bars):
        rest = total - sum(n for _, n in shown)
        console.print(
            Text(
                f"  {len(bars) - len(shown)} other sizes: {amount(rest, 'execution')}, {share(rest / total)}"
            )
        )
    for line in filter(None, (time_line(server), use_line(server))):
        console.print(Text(f"server  {line}"))


def _client(summary: dict[str, Any], console: Console) -> None:
    client = summary["client"]
    console.print()
    console.print(Text("client  " + client_line(client)))
    if network := summary.get("network"):
        console.print(Text("network  " + network_line(network)))
    if client.get("proxies_ignored"):
        console.print(Text(f"proxies ignored: {', '.join(client['proxies_ignored'])}"))
    if cold := summary.get("cold_start"):
        loads = [f"{model} loaded in {duration(ns)}" for model, ns in cold["load_ns"].items()]
        parts = [f"server live {duration(cold['live_ns'])} after its start", *loads]
        console.print(Text(f"cold start  {', '.join(parts)}"))
    for line in input_lines(summary):
        console.print(Text(f"inputs  {line}"))
    if told := first_line(summary):
        console.print(Text(f"first request of each kind (in no figure above): {told}"))


def _objectives(rows: list[dict[str, Any]], console: Console) -> None:
    if not rows:
        return
    console.print()
    for row in rows:
        between = f" ({told})" if (told := interval(row)) else ""
        more = f"; {said}" if (said := note(row)) else ""
        console.print(
            Text.assemble(
                (f"{row['verdict']:<12}", _STYLE[row["verdict"]]),
                f" {row['objective']}: observed {observed(row)}{between}, n {row['n']}{_from(row)}{more}",
            )
        )


def _from(row: dict[str, Any]) -> str:
    return f" ({said})" if (said := method(row)) else ""


def _doubts(doubts: list[dict[str, Any]], console: Console) -> None:
    if not doubts:
        return
    console.print()
    for doubt in sorted(doubts, key=lambda d: not d["invalidates"]):
        style = "bold red" if doubt["invalidates"] else "yellow"
        mark = "not valid" if doubt["invalidates"] else "doubt"
        console.print(Text.assemble((f"{mark}: ", style), f"{doubt['text']} [{doubt['code']}]"))
        if doubt["hint"]:
            console.print(Padding(Text(doubt["hint"], style="dim"), (0, 0, 0, 4)))
