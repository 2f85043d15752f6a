"""What is drawn of a plan, and what lint says of it, by values."""

import re

import pytest

from loadgen.analysis.unwise import unwise
from loadgen.planstory import describe_plan
from loadgen.report.plan import WIDTH, plan_data, plan_lines
from loadgen.schedule import plan
from loadgen.traffic.profile import parse_profile

WARM = "{name: warm, warmup: true, closed: {users: 8, requests: 64}}"
STEADY = "{name: go, open: {rate: [{duration: 60s, at: 20/s}]}}"


def made(folder, kinds="k: {model: m}", phases=(WARM, STEADY), more=""):
    text = f"name: t\nseed: 1\nkinds: {{{kinds}}}\n{more}\nphases:\n" + "".join(
        f"  - {phase}\n" for phase in phases
    )
    profile = parse_profile(text, "t.yaml", folder)
    planned = plan(profile)
    return profile, planned, describe_plan(planned)


def lines(*args, **more):
    return plan_lines(*made(*args, **more))


def notes(*args, **more):
    """Without that on inputs that come again, which has a test of its own."""
    return [note for note in unwise(*made(*args, **more)) if "inputs in turns" not in note]


def trace(folder, stamps, more=""):
    (folder / "t.csv").write_text(
        "t,in,out\n" + "".join(f"{t},{i + 1},{9 * i}\n" for i, t in enumerate(stamps))
    )
    return f"{{name: replay, trace: {{file: t.csv, columns: {{time: t, input: in, output: out}}, unit: s, kind: k{more}}}}}"


def test_a_trace_with_equal_stamps_says_how_bursty_it_is(tmp_path):
    told = lines(tmp_path, phases=[WARM, trace(tmp_path, [0, 0, 0, 1, 2, 2])])
    assert (
        "  gap CV 1.22, dispersion 2.14 (Poisson, constant rate: 1, 1 +- 0.6 in 20 bins), largest burst 3"
        in told
    )
    assert "  5 arrivals (83.3%) share their instant with others" in told
    assert any(
        line.startswith("  open, a trace's times: 6 arrivals in 2.4 s, mean 2.5/s, busiest 120 ms")
        for line in told
    )
    assert "  6 of 6 rows read are replayed" in told
    assert not any(line.startswith("  asked") for line in told)  # no rate is


def test_what_the_client_does_besides_is_said(tmp_path):
    kinds = (
        "k: {model: m, chat: {turns: 3, think: 2s}, length: 9, output: {uniform: {min: 1, max: 4}}, "
        "cancel: {share: 0.1, after: 500ms}, weight: 3}, s: {model: n, sequence: {requests: 5}, priority: 2}"
    )
    more = "cap: {in_flight: 1000, when_full: drop}\nnetwork: {delay: 20ms}\nobjectives: [failure rate < 1%]"
    told = lines(tmp_path, kinds, more=more)
    assert told[-6:] == [
        "kind k  75.0% by weight  OpenAI chat, streamed, model m, timeout 60 s, dialogues of 3 turns, 2 s",
        "    apart, 0.1 of them cancelled 500 ms after sending",
        "kind s  25.0% by weight  KServe v2, model n, priority 2, timeout 60 s, sequences of 5",
        "cap  1,000 in flight; when it is full, arrivals are dropped, and counted",
        "network  20 ms each way (a round trip takes 40 ms more)",
        "objective  failure rate < 1%",
    ]
    assert "    length in   always 9" in told
    assert sum(line.startswith("    length out  ") and line.endswith("P99 4, max 4") for line in told) == 2
    data = plan_data(*made(tmp_path, kinds, more=more))
    assert data["network"]["delay_ns"] == 20_000_000
    assert data["cap"] == {"in_flight": 1000, "when_full": "drop"}
    assert data["kinds"]["k"]["cancel"] == {"share": 0.1, "after_ns": 500_000_000}
    assert (data["kinds"]["k"]["turns"], data["kinds"]["s"]["sequence_requests"]) == (3, 5)


def test_no_line_is_wider_than_its_page(tmp_path):
    kinds = f"{'n' * 60}: {{model: {'m' * 120}, length: {{lognormal: {{median: 32, sigma: 2, min: 1, max: 100000}}}}}}"
    phase = STEADY.replace("go", "g" * 100)
    told = lines(tmp_path, kinds, phases=[WARM, phase])
    assert max(map(len, told)) == WIDTH
    assert sum("(bars widen)" in line for line in told) == 2


def test_inputs_that_come_again_are_noted(tmp_path):
    def noted(kind, phases=(WARM, "{name: go, closed: {users: 2, requests: 2048}}")):
        return [note for note in unwise(*made(tmp_path, f"k: {kind}", phases)) if "inputs in turns" in note]

    (note,) = noted("{model: m}", ["{name: go, closed: {users: 2, requests: 2048}}"])
    assert note.startswith("kind 'k': its 2,048 requests take about 512 inputs in turns, so 75% repeat one")
    assert len(noted("{model: m, chat: {}, length: 5}")) == 1
    for kind in (
        "{model: m, distinct: all}",
        "{model: m, data: {file: a.npz}}",
        "{model: m, chat: {prompts: {file: a.txt}}}",
        "{model: m, inputs: {x: {file: a.npy}}}",
        "{model: m, sequence: {requests: 2}}",
    ):
        assert noted(kind) == []
    assert noted("{model: m}", ["{name: go, closed: {users: 2, requests: 512}}"]) == []
    assert noted("{model: m}", ["{name: go, closed: {users: 2, duration: 9s}}"]) == []


def test_a_sound_profile_has_no_notes(tmp_path):
    more = 'cap: {in_flight: 64}\nobjectives: ["latency p99 < 2s", "lag p50 < 1s", "requests/s > 5"]'
    assert notes(tmp_path, more=more) == []


@pytest.mark.parametrize(
    ("kinds", "rate", "n"),
    [("k: {model: m}", "10/s", 600), ("k: {model: m, sequence: {requests: 2}}", "5/s", 600)],
)
def test_too_few_requests_for_a_percentile(tmp_path, kinds, rate, n):
    phase = f"{{name: go, open: {{arrivals: uniform, rate: [{{duration: 60s, at: {rate}}}]}}}}"
    objectives = (
        'objectives: ["latency p99 < 2s", "latency p95 < 2s", "latency max < 9s", "latency mean < 1s"]'
    )
    assert notes(tmp_path, kinds, [WARM, phase], objectives) == [
        (
            f'objective "latency p99 < 2s": about {n} requests will be judged, of which 6.0 lie beyond it, so chance '
            "decides; plan 1,000 or more"
        )
    ]


def test_how_many_a_closed_loop_sends_is_not_guessed(tmp_path):
    phase = "{name: go, closed: {users: 8, duration: 1s}}"
    assert notes(tmp_path, phases=[WARM, phase], more='objectives: ["latency p99 < 2s"]') == []


_SHORT = "{name: go, open: {arrivals: uniform, rate: [{duration: 10s, at: 30/s}]}}"


def needed(told):
    """Objectives that cannot pass: their text, how many will be judged, how many are needed."""
    found = (
        re.fullmatch(r'objective "(.*)": about ([\d,]+) requests .* fewer than ([\d,]+), .*', one)
        for one in told
    )
    return [(one[1], *(int(number.replace(",", "")) for number in one.groups()[1:])) for one in found if one]


@pytest.mark.parametrize(
    ("objective", "judged", "least"),
    [
        ("latency p99 < 2s", 300, 500),
        ("latency p99.9 <= 2s", 300, 5000),
        ("service p50 < 2s", 300, None),
        ("lag p98.5 < 2s", 300, 334),
        ("failure rate < 1%", 300, 368),
        ("failure rate <= 1.3%", 300, None),  # 282
        ("rejection rate < 0.1%", 300, 3688),
        ("a: failure rate < 2%", 75, 183),
        ("b: failure rate < 2%", 225, None),
        ("a: latency p90 < 1s", 75, None),
        ("a: latency p96 < 1s", 75, 125),
        ("requests/s > 1", 300, None),
        ("mean batch > 1", 300, None),
        ("latency max < 1s", 300, None),
        ("latency mean < 1s", 300, None),
    ],
)
def test_every_objective_that_a_plan_cannot_decide(tmp_path, objective, judged, least):
    kinds = "a: {model: m, weight: 1}, b: {model: m, weight: 3}"
    told = needed(notes(tmp_path, kinds, [WARM, _SHORT], f'objectives: ["{objective}"]'))
    if least is None:
        assert told == []
    else:
        [(text, n, need)] = told
        assert (text, need) == (objective, least)
        assert n == pytest.approx(judged, abs=20 if objective.startswith("a:") else 0)


def test_goodput_is_a_share_too_and_needs_a_bound(tmp_path):
    told = notes(tmp_path, phases=[WARM, _SHORT], more='objectives: ["latency p50 < 1s", "goodput > 99.5%"]')
    assert needed(told) == [("goodput > 99.5%", 300, 736)]
    [told] = notes(tmp_path, phases=[WARM, _SHORT], more='objectives: ["goodput > 50%", "lag p50 < 1s"]')
    assert told.startswith('objective "goodput > 50%": no other objective bounds')


@pytest.mark.parametrize("objective", ["failure rate <= 0%", "rejection rate < 0%", "goodput >= 100%"])
def test_what_no_number_can_prove(tmp_path, objective):
    told = notes(tmp_path, phases=[WARM, STEADY], more=f'objectives: ["latency p50 < 1s", "{objective}"]')
    assert [note.partition(";")[0] for note in told] == [
        f'objective "{objective}": no number of requests can prove it'
    ]


def test_times_of_streams_are_of_the_kinds_that_stream(tmp_path):
    kinds = "t: {model: m, weight: 9, stream: true}, s: {model: m, weight: 1, stream: true}, w: {model: m, weight: 10}"
    phase = "{name: go, open: {arrivals: uniform, rate: [{duration: 20s, at: 40/s}]}}"
    more = 'objectives: ["ttft p99 < 1s", "latency p99 < 1s", "s: ttft p95 < 1s", "w: tpot p50 < 1s"]'
    told = {text: (n, least) for text, n, least in needed(notes(tmp_path, kinds, [WARM, phase], more))}
    assert set(told) == {"ttft p99 < 1s", "s: ttft p95 < 1s", "w: tpot p50 < 1s"}
    assert told["ttft p99 < 1s"] == (pytest.approx(400, abs=50), 500)
    assert told["s: ttft p95 < 1s"] == (pytest.approx(40, abs=15), 100)
    assert told["w: tpot p50 < 1s"] == (0, 20)


def test_an_objective_that_each_phase_must_hold_takes_enough_requests_in_each(tmp_path):
    few = "{name: few, open: {arrivals: uniform, rate: [{duration: 10s, at: 20/s}]}}"
    many = "{name: many, open: {arrivals: uniform, rate: [{duration: 10s, at: 200/s}]}}"
    wanted = (
        "latency p99 < 1s",
        "latency p99 in phase many < 1s",
        "latency p99 in all phases < 1s",
        "latency p99 in phase few < 1s",
    )
    told = needed(notes(tmp_path, phases=[WARM, few, many], more=f"objectives: {list(wanted)}"))
    assert told == [(wanted[0], 200, 500), (wanted[3], 200, 500)]


def test_what_is_given_up_and_what_pauses_leave_out_is_not_judged(tmp_path):
    more = 'objectives: ["failure rate < 1%"]'
    phase = "{name: go, open: {arrivals: uniform, rate: [{duration: 20s, at: 20/s}]}}"
    assert needed(notes(tmp_path, phases=[WARM, phase], more=more)) == []
    kinds = "k: {model: m, cancel: {share: 0.25, after: 100ms}}"
    assert needed(notes(tmp_path, kinds, [WARM, phase], more)) == [("failure rate < 1%", 300, 368)]
    phase = "{name: go, closed: {users: 5, duration: 20s, think: 1s}}"
    assert needed(notes(tmp_path, phases=[WARM, phase], more=more)) == [("failure rate < 1%", 105, 368)]


def test_a_timeout_in_front_of_an_objective(tmp_path):
    kinds = "k: {model: m, timeout: 1s}, l: {model: m, timeout: 5s}"
    more = 'objectives: ["latency p50 < 2s", "l: service p50 < 2s", "lag p50 < 20s"]'
    assert notes(tmp_path, kinds, more=more) == [
        (
            'objective "latency p50 < 2s": the timeout ends sooner (k 1 s), so slower answers are never seen; make the '
            "timeout longer than the bound"
        )
    ]


def test_cold_slots(tmp_path):
    users = "{name: go, closed: {users: 32, requests: 99}}"
    assert notes(tmp_path, phases=[WARM, users]) == [
        (
            "the warm-up has 8 users, phase 'go' has 32 users, so some of the server's slots begin cold; give the "
            "warm-up as many"
        )
    ]
    assert notes(tmp_path, phases=[users]) == [
        "no phase is a warm-up, so first requests are in the figures; put one with warmup: true first"
    ]


def test_a_burst_over_the_cap_and_rows_left_out(tmp_path):
    phase = trace(tmp_path, [0, 0, 0, 1, 2, 2], ", skip: 1, where: {in: {max: 5}}")
    told = notes(tmp_path, phases=[WARM, phase], more="cap: {in_flight: 1, when_full: drop}")
    assert told == [
        (
            "phase 'replay': up to 2 arrivals are due at one instant, the cap is 1: 1 of them are dropped whatever the "
            "server does"
        ),
        "phase 'replay': 2 of 6 rows of t.csv are left out (skip: 1, where in: 1)",
    ]


def test_output_of_tensors(tmp_path):
    assert notes(tmp_path, "k: {model: m, output: 5}") == [
        "kind 'k': tensors have no tokens out, so output is not used; take it out"
    ]


def test_a_status_that_an_outage_has_too_needs_words_to_mean_full(tmp_path):
    def said(full):
        return [note for note in notes(tmp_path, f"k: {{model: m, full: {full}}}") if "full" in note]

    assert [
        said(full) for full in ("{status: [429]}", "{status: [503], words: [busy]}", "{words: [busy]}")
    ] == [[]] * 3
    assert len(said("{status: [503, 14, 429]}")) == 2
    assert "status 503" in said("{status: [503]}")[0]
