"""report.html: one file that opens offline, with charts a person can hover and zoom.

The chart library is embedded; a content policy in the page forbids it any connection.  Everything that
comes from a profile or a server is hostile until escaped: the template escapes by default, and the data
handed to the script cannot close it.  This module must not compute figures.
"""

import json
from functools import cache
from importlib.resources import files
from typing import Any

from loadgen.analysis.frame import Frame, frame_of
from loadgen.report import words
from loadgen.report.charts import charts
from loadgen.runread import Run

TITLES = {
    "over-time": ("Latency over time", "Latency counts from the due time: a request sent late is late."),
    "lag": (
        "Lag over time",
        "Due to sent: what the client, its cap or opening connections added to latency.",
    ),
    "distribution": (
        "Latency distribution",
        "Successes of the measured phases; service counts from sending.",
    ),
    "first-token": (
        "Time to first token over time",
        "From due, and from sent as others count it; successes.",
    ),
    "tokens": (
        "First tokens, time a token and chunk gaps",
        "Successes of the measured phases. A chunk may hold several tokens, so its gap is no time a token.",
    ),
    "rate": ("Rate asked and achieved", "Where the lines part, the server or the cap held requests back."),
    "batches": ("Batch sizes", "As the server counted them in the measured phases."),
}
OUTCOMES = ["planned", "tried", "sent", "ok", "failed", "timeout", "rejected", "dropped", "cancelled"]
SOMETIMES = ["planned_cancels", "unknown"]


def render(run: Run, summary: dict[str, Any], frame: Frame | None = None) -> str:
    """The page as text; `frame` holds the run's rows when they were read already."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("loadgen.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    environment.filters |= {"duration": words.duration, "rate": words.rate}
    environment.globals["statuses"] = words.statuses
    figures = charts(frame_of(run) if frame is None else frame, summary, run.info)
    several = "runs" in summary  # their phases are as many times as many
    rows = [
        {"figures": phase, "name": phase["name"], "note": "" if phase["measured"] else "warm-up"}
        for phase in ([] if several else summary["phases"])
    ]
    if several or sum(phase["measured"] for phase in summary["phases"]) > 1:
        rows.append(
            {"figures": summary["total"], "name": "all runs" if several else "all measured", "note": ""}
        )
    return environment.get_template("report.html.j2").render(
        summary=summary,
        rows=rows,
        info=run.info,
        outcomes=OUTCOMES
        + [key for key in SOMETIMES if any(key in row["figures"]["counts"] for row in rows)],
        interval=words.interval,
        interval_lines=words.interval_lines,
        method=words.method,
        until_sure_line=words.until_sure_line(summary) if "until_sure" in summary else None,
        run_head=words.RUN_HEAD,
        run_cells=words.run_cells,
        spread_rows=words.spread_rows(summary.get("between_runs", {})),
        note=words.note,
        observed=words.observed,
        client_line=words.client_line,
        use_line=words.use_line(summary["server"]),
        first_line=words.first_line(summary),
        input_lines=words.input_lines(summary),
        time_line=words.time_line(summary["server"]),
        model_lines=words.model_lines(summary["server"]),
        stream_line=words.stream_line,
        stream_notes=words.stream_notes,
        goodput_line=words.goodput_line,
        network_line=words.network_line,
        burst_lines=[] if several else words.burst_lines(summary),
        titles={name: TITLES[name] for name in TITLES if name in figures},
        facts={
            name: json.dumps(run.info.get(name), indent=2, ensure_ascii=False)
            for name in ("client", "server")
        },
        figures=script_json(figures),
        library=library(),
    )


def script_json(value: Any) -> Any:
    """JSON that cannot end the script element it stands in, nor open a comment."""
    from markupsafe import Markup

    text = json.dumps(value, separators=(",", ":"), allow_nan=False)  # ASCII: no U+2028 either
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))  # noqa: S704 - escaped


@cache
def library() -> Any:
    """The chart library's script, from its package's own data: importing plotly for it would take a second."""
    from markupsafe import Markup

    text = files("plotly").joinpath("package_data", "plotly.min.js").read_text(encoding="utf-8")
    return Markup(text)  # noqa: S704 - a pinned dependency's file
