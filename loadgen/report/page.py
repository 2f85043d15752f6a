"""A page of an experiment: a verdict, lines of words, charts and tables; it opens offline."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum, auto
from typing import Any

from loadgen.report.html import library, script_json


class Mood(StrEnum):
    """The colour of a verdict."""

    GOOD = auto()
    BAD = auto()
    UNSURE = auto()


@dataclass(frozen=True, slots=True)
class Chart:
    """A plotly figure with its name (of letters and dashes), title and what it shows."""

    name: str
    title: str
    note: str
    figure: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Table:
    """Every row has as many cells as the head."""

    title: str
    head: list[str]
    rows: list[list[str]]


@dataclass(frozen=True, slots=True)
class Page:
    """What a page shows, from top to bottom."""

    title: str
    badge: str
    mood: Mood
    subtitle: str
    lines: list[str]
    charts: list[Chart] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)


def render_page(page: Page) -> str:
    """The page as text; every word in it is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("loadgen.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    figures = {chart.name: chart.figure for chart in page.charts}
    return environment.get_template("page.html.j2").render(
        page=page, library=library(), figures=script_json(figures)
    )
