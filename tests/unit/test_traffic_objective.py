import pytest

from loadgen.records import LoadgenError
from loadgen.traffic.objective import (
    Figure,
    Lengths,
    Objective,
    ObjectiveError,
    load_objectives,
    parse_figure,
    parse_objective,
)


@pytest.mark.parametrize(
    ("text", "kind", "metric", "quantile", "op", "threshold"),
    [
        ("latency p99 < 250ms", None, "latency", 0.99, "<", 250e6),
        ("latency p99.9 < 1s", None, "latency", 0.999, "<", 1e9),
        ("latency p999 <= 1s", None, "latency", 0.999, "<=", 1e9),
        ("service p50<=80us", None, "service", 0.5, "<=", 80e3),
        ("lag mean < 1ms", None, "lag", None, "<", 1e6),
        ("lag max < 1ms", None, "lag", 1.0, "<", 1e6),
        ("Latency P95 < 1s", None, "latency", 0.95, "<", 1e9),
        ("failure rate < 1%", None, "failure rate", None, "<", 0.01),
        ("rejection rate <= 0.5 %", None, "rejection rate", None, "<=", 0.005),
        ("requests/s > 50", None, "requests/s", None, ">", 50.0),
        ("items/s >= 90/m", None, "items/s", None, ">=", 1.5),
        ("ttft p95 < 500ms", None, "ttft", 0.95, "<", 500e6),
        ("TTFT from sent p95 < 500ms", None, "ttft from sent", 0.95, "<", 500e6),
        ("first content p50 < 1s", None, "first content", 0.5, "<", 1e9),
        ("first content token from sent max < 1s", None, "first content from sent", 1.0, "<", 1e9),
        ("chat: tpot mean < 50ms", "chat", "tpot", None, "<", 50e6),
        ("chunk gap p99 < 25ms", None, "chunk gap", 0.99, "<", 25e6),
        ("output tokens/s > 100", None, "output tokens/s", None, ">", 100.0),
        ("input tokens/s > 6000/m", None, "input tokens/s", None, ">", 100.0),
        ("goodput > 95%", None, "goodput", None, ">", 0.95),
        ("request goodput >= 95%", None, "goodput", None, ">=", 0.95),
        ("good tokens/s > 10", None, "good tokens/s", None, ">", 10.0),
        ("mean batch > 2.5", None, "mean batch", None, ">", 2.5),
        ("short: service p95 <= 80ms", "short", "service", 0.95, "<=", 80e6),
        ("  short :  failure rate<1%  ", "short", "failure rate", None, "<", 0.01),
    ],
)
def test_read(text, kind, metric, quantile, op, threshold):
    assert parse_objective(text) == Objective(
        " ".join(text.split()), Figure(metric, quantile, kind), op, pytest.approx(threshold)
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "cannot be read"),
        ("latency p99", "cannot be read"),
        ("latency p99 = 5ms", "cannot be read"),
        ("latency p99 << 5ms", "cannot be read"),
        ("latncy p99 < 5ms", "did you mean 'latency'"),
        ("latency < 5ms", "needs one of pNN, mean, max"),
        ("latency median < 5ms", "'median' is none of pNN, mean, max"),
        ("latency p100 < 5ms", "for the largest write max"),
        ("latency p0 < 5ms", "'p0': a percentile is above p0 and below p100"),
        ("latency p99 < 5", "'5' is not a duration"),
        ("latency p99 < -5ms", "not a duration"),
        ("ttft < 5ms", "ttft needs one of pNN, mean, max"),
        ("ttft from due p95 < 5ms", "ttft needs one of pNN, mean, max"),
        ("chunk gap p99 < 5", "'5' is not a duration"),
        ("goodput > 95", "not a percentage"),
        ("failure rate < 0.01", "not a percentage"),
        ("failure rate < 101%", "more than 100%"),
        ("requests/s > 5%", "not a plain number"),
        ("requests/s > 5/d", "not a rate"),
        ("short: mean batch > 2", "by model, not by kind"),
        ("failure rate p99 < 1%", "unknown metric"),
        (": latency p99 < 1s", "names no kind"),
        ("latency p99 in phase < 1s", "'in phase' takes a name"),
        ("latency p99 in all phases twice < 1s", "takes nothing behind it"),
        ("latency p99 in phase a in phase b < 1s", "says twice"),
        ("latency p99 in phase a in all phases < 1s", "says twice"),
        ("latency p99 at length 9-3 < 1s", "not a range of lengths"),
        ("chunk gap p99 at length 1-3 < 1s", "not known by length"),
        ("latency p99 of model m < 1s", "are counted by model"),
        ("joules a request in phase peak < 1", "drop kind, phase and length"),
    ],
)
def test_refused_in_one_line(text, says):
    with pytest.raises(ObjectiveError) as caught:
        parse_objective(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("op", "below", "equal", "above"),
    [
        ("<", True, False, False),
        ("<=", True, True, False),
        (">", False, False, True),
        (">=", False, True, True),
    ],
)
def test_holds(op, below, equal, above):
    objective = parse_objective(f"requests/s {op} 50")
    assert [objective.holds(value) for value in (49.9, 50.0, 50.1)] == [below, equal, above]


@pytest.mark.parametrize(
    ("text", "figure"),
    [
        ("latency p99", Figure("latency", 0.99)),
        ("chat: ttft p95 in phase peak", Figure("ttft", 0.95, "chat", "peak")),
        (
            "latency max at length 65-128 in phase heavy load",
            Figure("latency", 1.0, None, "heavy load", Lengths(65, 128)),
        ),
        ("service mean at length 7", Figure("service", None, None, None, Lengths(7, 7))),
        ("latency p99.9 in all phases", Figure("latency", 0.999)),
        ("requests/s in phase peak", Figure("requests/s", None, None, "peak")),
        ("mean batch of model bert in phase peak", Figure("mean batch", None, None, "peak", None, "bert")),
        ("server queue", Figure("server queue")),
        ("cold start model ready", Figure("cold start model ready")),
        ("short: first request", Figure("first request", None, "short")),
    ],
)
def test_a_figure_is_the_left_side_and_reads_back_as_itself(text, figure):
    assert parse_figure(text) == figure
    assert parse_figure(str(figure)) == figure


@pytest.mark.parametrize(
    ("text", "each"),
    [
        ("latency p99 < 1s", True),
        ("latency p99 in all phases < 1s", False),
        ("latency p99 in phase peak < 1s", False),
        ("joules a request < 2", False),
    ],
)
def test_without_a_phase_each_must_hold_it(text, each):
    assert parse_objective(text).each_phase is each


@pytest.mark.parametrize(
    "text",
    ["- latency p99 < 1s\n- goodput > 95%\n", "name: p\nobjectives: [latency p99 < 1s, goodput > 95%]\n"],
)
def test_objectives_come_from_a_list_or_a_profile(tmp_path, text):
    (tmp_path / "o.yaml").write_text(text)
    assert load_objectives(tmp_path / "o.yaml") == ["latency p99 < 1s", "goodput > 95%"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds no objectives"),
        ("objectives: 3", "holds no objectives"),
        ("- 3", "holds no objectives"),
        ("- latncy p99 < 1s", "did you mean 'latency'"),
        ("[", "not YAML"),
        (None, "cannot be read"),
    ],
)
def test_a_file_without_objectives_is_refused_in_one_line(tmp_path, text, says):
    if text is not None:
        (tmp_path / "o.yaml").write_text(text)
    with pytest.raises(LoadgenError) as caught:
        load_objectives(tmp_path / "o.yaml")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
