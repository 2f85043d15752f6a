"""Profiles fitted to traces: what was put in comes out, and no row shows."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.planstory import describe_plan
from loadgen.records import LoadgenError
from loadgen.schedule import plan
from loadgen.traffic.profile import parse_profile
from loadgen.traffic.synth import FEWEST, bars, fit_kind, fit_rate, ks, synthesize
from loadgen.traffic.traces.read import TraceRows
from tests.support.cli import loadgen

S = 10**9


def rows(due_ns, length, output, kind=None, kinds=()):
    n = len(length)
    return TraceRows(
        due_ns=due_ns,
        length=np.asarray(length, np.int32),
        output=np.asarray(output, np.int32),
        kind=np.full(n, -1, np.int16) if kind is None else np.asarray(kind, np.int16),
        kinds=kinds,
        facts={},
    )


def gamma_times(rng, n, burstiness, per_s):
    gaps = rng.gamma(1 / burstiness, burstiness, n) / per_s
    return np.cumsum(gaps * S).astype(np.int64)


def test_rate_burstiness_and_lengths_come_back():
    rng = np.random.default_rng(3)
    slow, fast = gamma_times(rng, 1000, 4, 10), gamma_times(rng, 4000, 4, 80)
    due_ns = np.concatenate([slow, slow[-1] + fast])
    length = np.clip(rng.lognormal(5, 0.8, 5000), 1, 4000).astype(int)
    output = rng.integers(1, 300, 5000)
    text = synthesize(rows(due_ns - due_ns[0], length, output), name="mine", model="m")
    profile = parse_profile(text, "fit.yaml")
    assert (profile.name, list(profile.kinds), profile.kinds["trace"].model) == ("mine", ["trace"], "m")
    loop = profile.phases[0].open
    assert loop.expected == pytest.approx(5000, rel=0.001)
    assert loop.duration_ns == pytest.approx(due_ns[-1], rel=0.01)
    assert loop.arrivals.burstiness == pytest.approx(4, rel=0.25)
    assert loop.rate[0].at_per_s == pytest.approx(10, rel=0.25)
    assert loop.rate[-1].at_per_s == pytest.approx(80, rel=0.25)
    talks = parse_profile(text.replace('model: "m"\n', 'model: "m"\n    chat: {}\n'), "fit.yaml")
    planned = plan(talks).phases[0]  # tensors have no tokens out
    for column, seen in ((planned.length, length), (planned.output, output)):
        quantiles = [0.1, 0.5, 0.9]
        assert np.quantile(column, quantiles) == pytest.approx(np.quantile(seen, quantiles), rel=0.12)
    assert describe_plan(plan(profile))[0].planned == pytest.approx(5000, rel=0.1)


def test_poisson_and_even_arrivals_are_called_so():
    rng = np.random.default_rng(4)
    length = np.full(2000, 64)
    poisson = synthesize(rows(gamma_times(rng, 2000, 1, 50), length, length), name="p", model="m")
    assert "arrivals: poisson" in poisson
    assert "    length: 64\n    output: 64\n" in poisson
    even = synthesize(rows(np.arange(2000) * 20_000_000, length, length), name="u", model="m")
    loop = parse_profile(even, "u.yaml").phases[0].open
    assert (str(loop.arrivals), len(loop.rate)) == ("uniform", 1)
    assert (loop.rate[0].at_per_s, loop.duration_ns) == (pytest.approx(50), 40 * S)


def test_a_long_silence_is_a_pause_and_no_burstiness():
    rng = np.random.default_rng(5)
    one = gamma_times(rng, 1000, 1, 100)
    due_ns = np.concatenate([one, one[-1] + 60 * S + one])
    rate = fit_rate(due_ns - due_ns[0])
    assert rate.burstiness == pytest.approx(1, abs=0.2)
    pause = rate.width_ns[rate.count == 0]
    assert pause.max() == pytest.approx(60 * S, rel=0.01)
    assert rate.rate_error < 0.1


def test_lengths_that_go_together_stay_together():
    rng = np.random.default_rng(6)
    length = rng.integers(10, 2000, 3000)
    output = (length * 0.5 * rng.uniform(0.8, 1.2, 3000)).astype(int)
    fit = fit_kind("k", length.astype(np.int32), output.astype(np.int32))
    assert fit.correlation > 0.9
    assert all(count >= FEWEST for _, _, count in fit.pairs)
    assert sum(count for _, _, count in fit.pairs) == 3000
    assert all(0.3 < out / in_ < 0.8 for in_, out, _ in fit.pairs)
    assert fit.length_ks < 0.06
    profile = parse_profile(synthesize(rows(None, length, output), name="c", model="m"), "c.yaml")
    assert len(profile.kinds["trace"].lengths) == len(fit.pairs)
    assert (profile.phases[0].closed.users, profile.phases[0].closed.requests) == (1, 3000)


def test_kinds_keep_their_shares_and_lengths():
    kind = np.arange(400) % 4 == 0
    length = np.where(kind, 900, 30)
    trace = rows(np.arange(400) * S, length, np.full(400, -1), kind.astype(int), ("short", "long"))
    profile = parse_profile(synthesize(trace, name="k", model="m"), "k.yaml")
    short, long = profile.kinds["short"], profile.kinds["long"]
    assert (short.weight, long.weight) == (0.75, 0.25)
    assert (short.length.law, long.length.law, long.output) == (30, 900, None)


def test_too_few_rows_would_show():
    with pytest.raises(LoadgenError, match=r"19 rows of kind trace: too few .* allowed: 20 or more"):
        synthesize(rows(np.arange(19), np.arange(1, 20), np.arange(1, 20)), name="x", model="m")


@given(values=st.lists(st.integers(1, 5000) | st.sampled_from([7, 1000]), min_size=FEWEST, max_size=300))
def test_bars_hold_all_values_and_hide_single_ones(values):
    values = np.array(values)
    found = bars(values, 32)
    assert sum(count for _, _, count in found) == len(values)
    assert all(count >= FEWEST for _, _, count in found)
    for (_, high, _), (low, _, _) in itertools.pairwise(found):
        assert high < low
    assert all(low >= 1 for low, _, _ in found)
    assert found[0][0] <= values.min()
    assert found[-1][1] >= values.max()


def test_ks_of_known_laws():
    ten = np.arange(1, 11)
    assert ks(ten, [(1, 10, 5)]) == pytest.approx(0)
    assert ks(ten, [(1, 5, 1)]) == pytest.approx(0.5)
    assert ks(ten, [(10, 10, 1)]) == pytest.approx(0.9)


def test_the_verb_writes_a_profile_and_says_what_it_read(tmp_path):
    trace = tmp_path / "secret name.csv"
    lines = [f"{10 * i},{5 + i % 7},{'abc'[i % 3]}" for i in range(300)]
    trace.write_text("when,tokens,tenant\n" + "\n".join(lines))
    out = tmp_path / "fit.yaml"
    keys = "{columns: {time: when, input: tokens}, unit: ms, where: {tenant: [a, b]}}"
    answer = loadgen("profile", "synth", trace, "--keys", keys, "--out", out, "--model", "mine")
    assert (answer.code, answer.out) == (0, "")
    assert "200 of 300 rows read are replayed (left out: where tenant: 100)" in answer.err
    text = out.read_text()
    assert "secret" not in text
    assert parse_profile(text, "fit.yaml").kinds["trace"].model == "mine"
    again = loadgen("profile", "synth", trace, "--keys", keys, "--out", out)
    assert (again.code, again.error_lines) == (2, [f"error: {out}: is there already; name a new file"])
    assert loadgen("profile", "synth", trace, "--keys", keys).out.startswith(
        "# Fitted to a trace of 200 requests"
    )
    for dialect in ("chat", "completion", "generate"):
        kind = parse_profile(
            loadgen("profile", "synth", trace, "--keys", keys, "--as", dialect).out, "p"
        ).kinds["trace"]
        assert [one for one in ("chat", "completion", "generate") if getattr(kind, one)] == [dialect]
    bad = loadgen("profile", "synth", trace, "--keys", "{unit: ms}")
    assert bad.code == 2
    assert "unit: belongs to columns.time" in bad.err
