"""The bench's rows as one table, the ratios that are asked for, and what explains them, in words.

Every sentence is computed from the cells.  It must not run anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

METHOD = [
    "CPU: user + system of the client's whole process and children, start and end included, over the requests that the server counted, warm-up included.",
    "`loop us`: what loadgen says of its measured phases alone, without start and report; short cells, and open loops at low rates, are mostly start and report.",
    "Ratios: medians of the rounds' own ratios; within a round the clients run one after the other, the order turns every round.",
    "Closed loops: figures from rounds without a capture; on the wire from rounds of their own with one (tcpdump takes CPU, so only differences within such a round mean something).",
    "Open loops are captured always; their CPU and percentiles are taken beside tcpdump.",
    "On the wire: from the packet with a request's first byte to the last packet of its answer; for gRPC to the frame that ends the stream.",
    "Lateness: the packet against an even grid. loadgen: the grid of its due times, laid onto the capture's clock by the least distance between its own stamp and the packet; perf_analyzer tells no origin: the one that makes its least late request punctual, which flatters it. `fit` is that same rule applied to loadgen.",
    "The null HTTP server (nginx) answers before it has read a request's body; that shortens the wire times of clients that send the body in a packet of its own.",
]
_WIDE = 0.10  # differences in P50 beyond this are explained


def _row(
    rows: Iterable[Any], server: str, protocol: str, load: str, who: str, *, captured: bool = False
) -> Any:
    for row in rows:
        g = row.group
        if (g.server, g.protocol, g.load, row.who, g.captured) == (server, protocol, load, who, captured):
            return row
    return None


def paired(ours: Any, theirs: Any, name: str) -> dict[str, Any] | None:
    """Median, least and greatest of the rounds' ratios."""
    if ours is None or theirs is None:
        return None
    values = [getattr(a, name) / getattr(b, name) for a, b in zip(ours.cells, theirs.cells, strict=False)
              if a and b and getattr(a, name) and getattr(b, name)]  # fmt: skip
    if not values:
        return None
    return {
        "median": round(float(np.median(values)), 4),
        "min": round(min(values), 4),
        "max": round(max(values), 4),
        "rounds": len(values),
    }


def ratios(rows: list[Any]) -> dict[str, Any]:
    """The contract of bench.json, None where not measured; the spreads lie beside it."""
    spread: dict[str, Any] = {}

    def ratio(
        key: str, server: str, protocol: str, load: str, who: str, other: str, name: str
    ) -> float | None:
        found = spread[key] = paired(
            _row(rows, server, protocol, load, who), _row(rows, server, protocol, load, other), name
        )
        return None if found is None else found["median"]

    def late(who: str) -> float | None:
        row = _row(rows, "null", "http", "3000/s", who, captured=True)
        return None if row is None else row.median("late_p99_us")

    pa, load = "perf_analyzer", "32 users"
    told: dict[str, Any] = {}
    for protocol in ("http", "grpc"):
        told[protocol] = {
            f"{short}_vs_{other}": ratio(
                f"{protocol}.{short}_vs_{other}", "triton", protocol, load, "loadgen", other, name
            )
            for short, other, name in (("cpu", pa, "cpu_us"), ("cpu", "wrk", "cpu_us"), ("rps", pa, "rps"))
            if not (protocol == "grpc" and other == "wrk")
        }
    told["open_3000"] = {"lag_p99_us": late("loadgen"), "lag_p99_us_realtime": late("loadgen -rt"),
                         "lag_p99_us_perf_analyzer": late(pa)}  # fmt: skip
    told["workers_2_vs_1"] = ratio(
        "workers_2_vs_1", "null", "grpc", "128 users", "loadgen -w2", "loadgen", "rps"
    )
    main = _row(rows, "triton", "http", load, "loadgen")
    told["rounds"] = len(main.cells) if main is not None else 0
    for protocol in ("http", "grpc"):
        ratio(f"null.{protocol}.cpu_vs_perf_analyzer", "null", protocol, load, "loadgen", pa, "cpu_us")
        ratio(f"null.{protocol}.rps_vs_perf_analyzer", "null", protocol, load, "loadgen", pa, "rps")
        ratio(f"null.{protocol}.workers_2_vs_1", "null", protocol, load, "loadgen -w2", "loadgen", "rps")
    ratio("null.http.cpu_vs_wrk", "null", "http", load, "loadgen", "wrk", "cpu_us")
    told["spread"] = {key: value for key, value in spread.items() if value is not None}
    return told


# -- text ------------------------------------------------------------------------------------------


def _number(value: float | None, width: int, digits: int = 0) -> str:
    return f"{'-':>{width}}" if value is None else f"{value:{width},.{digits}f}"


def _spread(values: list[float], digits: int = 0) -> str:
    return f"{min(values):,.{digits}f}..{max(values):,.{digits}f}" if values else "-"


def text(rows: list[Any], told: dict[str, Any]) -> str:
    """Everything a person reads."""
    lines = _closed(rows) + _open(rows) + _ratios(told) + _explained(rows) + _clocks(rows) + _workers(rows)
    return "\n".join([*lines, "", "How it was measured", *(f"- {line}" for line in METHOD)])


def _closed(rows: list[Any]) -> list[str]:
    head = (f"{'':22}{'client':15}{'requests/s':>11}{'CPU us/req':>11}{'loop us':>9}{'P50 us':>9}{'P99 us':>9}{'wire P50':>10}{'wire P99':>10}"
            f"{'server us':>10}  requests/s over rounds; CPU")  # fmt: skip
    lines, last = ["", "Closed loop (medians)", head], None
    for row in rows:
        g = row.group
        if g.rate or g.captured:
            continue
        wire = _row(rows, g.server, g.protocol, g.load, row.who, captured=True)
        name = f"{g.server} {g.protocol} {g.load}"
        shown = name if name != last else ""
        last = name
        p50, p99 = (wire.median(f"wire_{q}_us") if wire else None for q in ("p50", "p99"))
        lines.append(f"{shown:22}{row.who:15}{_number(row.median('rps'), 11)}{_number(row.median('cpu_us'), 11, 1)}"
                     f"{_number(row.median('loop_cpu_us'), 9, 1)}{_number(row.median('p50_us'), 9)}{_number(row.median('p99_us'), 9)}{_number(p50, 10)}{_number(p99, 10)}"
                     f"{_number(row.median('server_us'), 10, 1)}"
                     f"  {_spread(row.values('rps'))}; {_spread(row.values('cpu_us'), 1)}")  # fmt: skip
    return lines if len(lines) > 3 else []


def _open(rows: list[Any]) -> list[str]:
    head = (f"{'':22}{'client':15}{'requests/s':>11}{'CPU us/req':>11}{'loop us':>9}{'P50 us':>9}{'P99 us':>9}{'wire P50':>10}{'wire P99':>10}"
            f"{'late P50':>10}{'late P99':>10}{'fit P99':>9}  late P99 over rounds")  # fmt: skip
    lines, last = (
        ["", "Open loop, evenly spaced, captured (medians; late: packet against the grid)", head],
        None,
    )
    for row in rows:
        g = row.group
        if not g.rate:
            continue
        name = f"{g.server} {g.protocol} {g.load}"
        shown = name if name != last else ""
        last = name
        m = row.median
        lines.append(f"{shown:22}{row.who:15}{_number(m('rps'), 11)}{_number(m('cpu_us'), 11, 1)}{_number(m('loop_cpu_us'), 9, 1)}{_number(m('p50_us'), 9)}{_number(m('p99_us'), 9)}"
                     f"{_number(m('wire_p50_us'), 10)}{_number(m('wire_p99_us'), 10)}{_number(m('late_p50_us'), 10)}{_number(m('late_p99_us'), 10)}"
                     f"{_number(m('fit_p99_us'), 9)}  {_spread(row.values('late_p99_us'))}")  # fmt: skip
    return lines if len(lines) > 3 else []


def _ratios(told: dict[str, Any]) -> list[str]:
    lines = ["", "Ratios, loadgen to the other (http and grpc: the real Triton, 32 users); below 1 is less"]
    for key, value in told["spread"].items():
        lines.append(
            f"  {key:34}{value['median']:8.2f}   {value['min']:.2f}..{value['max']:.2f} over {value['rounds']} rounds"
        )
    for key, value in told["open_3000"].items():
        lines.append(f"  open_3000.{key:24}{_number(value, 8)} us")
    return lines


def _explained(rows: list[Any]) -> list[str]:
    """Where loadgen and perf_analyzer report another P50 for the same closed loop: why, from the cells."""
    lines = []
    for row in rows:
        g = row.group
        if g.rate or g.captured or g.server != "triton" or row.who != "loadgen":
            continue
        other = _row(rows, g.server, g.protocol, g.load, "perf_analyzer")
        p50 = paired(row, other, "p50_us")
        if p50 is None:
            continue
        name = f"  {g.protocol} {g.load}: P50 {p50['median']:.2f} of perf_analyzer's"
        if abs(p50["median"] - 1) <= _WIDE:
            lines.append(f"{name}: within {_WIDE:.0%}.")
            continue
        lines.append(f"{name}. {_why(rows, row, other, g)}")
    return ["", "Cross-check: the same closed loop through both", *lines] if lines else []


def _why(rows: list[Any], row: Any, other: Any, g: Any) -> str:
    """Fixed concurrency: rate x mean latency = users, so a client that leaves more CPU for the server sees both change."""
    ours, theirs = row.median("rps"), other.median("rps")
    a, b = row.median("cpu_us"), other.median("cpu_us")
    expected = theirs / ours
    p50 = row.median("p50_us") / other.median("p50_us")
    fits = (
        "that is the difference"
        if abs(p50 / expected - 1) <= _WIDE
        else "the rest is another spread around the mean"
    )
    a = row.median("loop_cpu_us") or a
    words = (f"At a fixed concurrency mean latency is users over rate: {ours:,.0f} against {theirs:,.0f} requests/s makes "
             f"{expected:.2f}; {fits}. Under load a request costs the client {a:.0f} us of CPU against {b:.0f}, which is "
             f"{ours * a / 1e6:.2f} against {theirs * b / 1e6:.2f} cores; the server has what is left. ")  # fmt: skip
    wire = [
        _row(rows, g.server, g.protocol, g.load, who, captured=True) for who in ("loadgen", "perf_analyzer")
    ]
    if all(w is not None and w.median("wire_p50_us") for w in wire):
        (wa, wb), (ra, rb) = ([w.median(key) for w in wire] for key in ("wire_p50_us", "p50_us"))
        words += (f"On the wire P50 is {wa:.0f} against {wb:.0f} us ({wa / wb:.2f}); the clients add {ra - wa:.0f} against "
                  f"{rb - wb:.0f} us before they see an answer.")  # fmt: skip
    return words


def _clocks(rows: list[Any]) -> list[str]:
    """What each client reports against the capture of that same run."""
    lines = []
    for row in rows:
        g = row.group
        if not g.captured or not row.median("wire_p50_us"):
            continue
        due = row.median("wire_due_p50_us") is not None
        keys = [f"wire_due_{q}_us" if due else f"wire_{q}_us" for q in ("p50", "p99")]
        seen = [
            (cell, *(cell.more[key] for key in keys)) for cell in row.cells if cell and cell.more.get(keys[0])
        ]
        p50 = float(np.median([cell.p50_us - wire for cell, wire, _ in seen]))
        p99 = float(np.median([cell.p99_us - wire for cell, _, wire in seen]))
        share = float(np.median([cell.p99_us / wire - 1 for cell, _, wire in seen]))
        lines.append(
            f"  {g.server:7}{g.protocol:5}{g.load:10}{row.who:15}P50 {p50:+8.0f} us   P99 {p99:+8.0f} us ({share:+.0%})"
            + ("   both from due" if due else "")
        )
    return ["", "Reported minus on the wire, of the same captured run", *lines] if lines else []


def _workers(rows: list[Any]) -> list[str]:
    """Two workers on few cores can gain only what the null server leaves over."""
    lines = []
    for row in rows:
        g = row.group
        if g.server != "null" or g.captured or g.rate or row.who != "loadgen":
            continue
        two = paired(_row(rows, "null", g.protocol, g.load, "loadgen -w2"), row, "rps")
        c, s, one = row.median("loop_cpu_us"), row.median("server_us"), row.median("rps")
        if two is None or not c or not one:
            continue
        most = min(2.0, 2e6 / (c + s) / one)
        lines.append(f"  {g.protocol} {g.load}: {two['median']:.2f} times one ({two['min']:.2f}..{two['max']:.2f}). A request takes {c:.1f} us of the client and "
                     f"{s:.1f} of the server: two whole cores carry {2e3 / (c + s):,.0f} thousand a second, {most:.2f} times what one worker did.")  # fmt: skip
    return ["", "Two workers on the null server", *lines] if lines else []
