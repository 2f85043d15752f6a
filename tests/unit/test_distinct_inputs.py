"""`distinct: all`, and how many different inputs a run sent: counted from what the server would have got."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.lab import shots as module
from loadgen.lab.kinds import make_kinds
from loadgen.lab.shots import make_shots
from loadgen.lab.target import make_transport
from loadgen.records import LoadgenError, ModelFacts, TensorSpec, Wanted
from loadgen.schedule import plan
from loadgen.target import parse_target
from loadgen.traffic.profile import ProfileError, parse_profile

OPENAI, KSERVE = "openai+http://127.0.0.1:1/v1", "http://127.0.0.1:1"


def made(kinds, phases, target=OPENAI, folder=None, inputs=(("x", "FP32", (4,)),)):
    profile = parse_profile(
        f"name: t\nkinds: {kinds}\nphases: {phases}\n", "t.yaml", *([folder] if folder else [])
    )
    facts = ModelFacts("m", "", ("1",), 8, tuple(TensorSpec(*spec) for spec in inputs), (), {})
    models, at = {("m", ""): facts}, parse_target(target)
    planned = plan(profile, 3)
    return planned, make_shots(make_transport(at), at, profile, make_kinds(profile, at, models), planned, 5)


def told(planned, shots, *begun):
    begun = begun or [len(phase.kind) for phase in planned.phases]
    each = [n if isinstance(n, list) else [n] for n in begun]
    return {row.pop("kind"): row for row in shots.inputs_sent(planned, each)}


WARM = "{name: w, warmup: true, closed: {users: 1, requests: 100}}"
LOAD = "{name: a, open: {arrivals: uniform, rate: [{duration: 10s, at: 200/s}]}}"


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        ("{model: m}", KSERVE),
        ("{model: m, chat: {system: Be brief.}, length: 9}", OPENAI),
        ("{model: m, completion: {}, length: {uniform: {min: 4, max: 40}}}", OPENAI),
        ('{http: {path: /p, json: {inputs: "{text}"}}, length: 9}', KSERVE),
    ],
)
def test_every_request_has_an_input_of_its_own(kind, target):
    planned, shots = made(f"{{k: {kind[:-1]}, distinct: all}}}}", f"[{WARM}, {LOAD}]", target)
    assert told(planned, shots)["k"] == {"requests": 2000, "distinct": 2000, "repeated": 0}
    bodies = [shots.shots[pick].prepared.data for picks in shots.picks for pick in picks.tolist()]
    assert len(set(bodies)) == len(bodies) == 2100
    planned, shots = made(f"{{k: {kind}}}", f"[{WARM}, {LOAD}]", target)
    row = told(planned, shots)["k"]
    assert row["requests"] == 2000
    assert 500 <= row["distinct"] <= 530
    assert row["repeated"] >= 2000 - row["distinct"]


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.tuples(st.booleans(), st.integers(1, 60), st.integers(0, 200)), min_size=1, max_size=4),
    st.randoms(),
)
def test_counts_are_those_of_a_walk_through_what_was_sent(phases, rnd):
    """Closed loops go round and round, cut where they were cut; half of the bodies are alike."""
    texts = (
        ", ".join(
            f"{{name: p{at}, closed: {{users: 1, requests: {n}}}{', warmup: true' if warm else ''}}}"
            for at, (warm, n, _) in enumerate(sorted(phases, key=lambda one: not one[0]))
        )
        + ", {name: end, closed: {users: 1, requests: 3}}"
    )
    planned, shots = made("{a: {model: m, batch: 2}, b: {model: m}}", f"[{texts}]", KSERVE)
    shots.inputs[:] = [rnd.randrange(20) + 20 * shot.kind for shot in shots.shots]
    begun = [*(n for *_, n in sorted(phases, key=lambda one: not one[0])), 3]
    seen, expected = set(), {name: [0, set(), 0] for name in "ab"}
    for phase, picks, n in zip(planned.phases, shots.picks, begun, strict=True):
        for at in range(n):
            pick = int(picks[at % len(picks)])
            mark, row = int(shots.inputs[pick]), expected["ab"[shots.shots[pick].kind]]
            if phase.measured:
                row[0] += 1
                row[1].add(mark)
                row[2] += mark in seen
            seen.add(mark)
    rows = told(planned, shots, *begun)
    assert {k: [r["requests"], r["distinct"], r["repeated"]] for k, r in rows.items()} == {
        k: [n, len(marks), again] for k, (n, marks, again) in expected.items()
    }


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 90), min_size=1, max_size=5), st.randoms())
def test_each_worker_walks_through_its_own_slice(counts, rnd):
    """As many as it began of every n-th arrival from its own on, round and round."""
    phases = "[{name: a, closed: {users: 5, requests: 200}}, {name: b, open: {arrivals: uniform, rate: [{duration: 2s, at: 20/s}]}}]"
    planned, shots = made("{k: {model: m}}", phases, KSERVE)
    shots.inputs[:] = [rnd.randrange(30) for _ in shots.shots]
    n, whole = len(counts), len(planned.phases[1].kind)
    open_counts = [len(range(k, whole, n)) for k in range(n)]  # each sends all of its slice
    seen: set[int] = set()
    requests, repeated = 0, 0
    for picks, began in zip(shots.picks, (counts, open_counts), strict=True):
        sent = [
            int(shots.inputs[picks[k::n][i % len(picks[k::n])]])
            for k, m in enumerate(began)
            for i in range(m)
        ]
        requests, repeated = requests + len(sent), repeated + len(sent) - len(set(sent) - seen)
        seen |= set(sent)
    row = told(planned, shots, counts, open_counts)["k"]
    assert row == {"requests": requests, "distinct": len(seen), "repeated": repeated}
    assert requests == sum(counts) + whole


def test_rows_of_a_file_are_as_many_as_there_are(tmp_path):
    (tmp_path / "p.txt").write_text("".join(f"text {i}\n" for i in range(50)))
    phases = "[{name: a, closed: {users: 1, requests: %d}}]"
    kind = "{k: {model: m, chat: {prompts: {file: p.txt}}%s}}"
    planned, shots = made(kind % ", distinct: all", phases % 50, folder=tmp_path)
    assert told(planned, shots)["k"] == {"requests": 50, "distinct": 50, "repeated": 0}
    planned, shots = made(kind % "", phases % 80, folder=tmp_path)
    assert told(planned, shots)["k"] == {"requests": 80, "distinct": 50, "repeated": 30}
    with pytest.raises(
        LoadgenError, match=r"kind 'k': distinct: all: 80 requests are planned and only 50 different"
    ):
        made(kind % ", distinct: all", phases % 80, folder=tmp_path)


def test_values_may_be_too_few():
    with pytest.raises(LoadgenError, match=r"40 requests are planned and only 2 different ones are possible"):
        made(
            "{k: {model: m, distinct: all}}",
            "[{name: a, closed: {users: 1, requests: 40}}]",
            KSERVE,
            inputs=[("x", "BOOL", (1,))],
        )


def test_memory_bounds_them(monkeypatch):
    monkeypatch.setattr(module, "MOST_BYTES", 2**20)
    with pytest.raises(
        LoadgenError, match=r"2,000 requests would take .* allowed: 1 MiB, about 1,0\d\d of them"
    ):
        made("{k: {model: m, distinct: all}}", f"[{LOAD}]", KSERVE)
    planned, shots = made(
        "{k: {model: m, distinct: all}}", "[{name: a, closed: {users: 1, duration: 5s}}]", KSERVE
    )
    n = len(shots.shots)
    assert 900 < n < 1100  # 1 KiB and 16 bytes each
    assert told(planned, shots, n)["k"]["repeated"] == 0
    assert told(planned, shots, n + 7)["k"] == {"requests": n + 7, "distinct": n, "repeated": 7}


def test_a_closed_loop_that_starts_its_draws_over_is_refused():
    with pytest.raises(
        LoadgenError, match=r"phase 'a': distinct: all: 70,000 requests of a closed loop; allowed: 65,536"
    ):
        made("{k: {model: m, distinct: all}}", "[{name: a, closed: {users: 1, requests: 70000}}]", KSERVE)


def test_sequences_share_their_variants():
    with pytest.raises(ProfileError, match=r"kinds\.k\.distinct: does not go with sequence"):
        made("{k: {model: m, distinct: all, sequence: {requests: 3}}}", f"[{LOAD}]", KSERVE)


def test_what_prompts_begin_with_is_told():
    system = "You are a careful assistant. " * 20
    kind = f"{{k: {{model: m, chat: {{system: '{system}'}}, length: 100}}}}"
    _, shots = made(kind, f"[{LOAD}]")
    prefix = shots.facts["k"]["shared_prefix"]
    assert len(system) - 1 <= prefix["bytes"] <= len(system) + 2
    assert prefix["share"] == pytest.approx(len(system) / (len(system) + 550), abs=0.06)
    _, shots = made("{k: {model: m, chat: {}, length: 100}}", f"[{LOAD}]")
    assert (shots.facts["k"]["shared_prefix"] or {"share": 0})["share"] < 0.01


def test_cancelled_twins_are_the_same_input():
    planned, shots = made(
        "{k: {model: m, distinct: all, cancel: {share: 0.5, after: 5ms}}}", f"[{LOAD}]", KSERVE
    )
    assert len(shots.inputs) == len(shots.shots) == 4000
    assert told(planned, shots)["k"] == {"requests": 2000, "distinct": 2000, "repeated": 0}
    assert np.array_equal(shots.inputs[:2000], shots.inputs[2000:])


def test_a_request_in_which_nothing_varies_is_one_input(tmp_path):
    kind = "{k: {distinct: all, http: {path: /p, json: {a: 1}}}}"
    with pytest.raises(LoadgenError, match="40 requests are planned and only 1 different"):
        made(kind, "[{name: a, closed: {users: 1, requests: 40}}]", KSERVE)
    planned, shots = made(kind, "[{name: a, closed: {users: 1, duration: 5s}}]", KSERVE)
    assert len(shots.shots) == 1
    assert told(planned, shots, 9)["k"] == {"requests": 9, "distinct": 1, "repeated": 8}


def test_bodies_of_any_server_are_measured_for_memory(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"x" * 2**20)
    blob = "form: {files: {a: {files: [a.bin]}}, fields: {id: '{id}'}}"
    kind = f"{{k: {{distinct: all, http: {{path: /p, {blob}}}}}}}"
    with pytest.raises(LoadgenError, match=r"2,000 requests would take 1\.9\d* GiB of memory"):
        made(kind, f"[{LOAD}]", KSERVE, tmp_path)
    shaped = "json: '{v}', values: {v: {uniform: {min: 0, max: 1}, shape: [length, 4000]}}"
    kind = (
        f"{{k: {{distinct: all, length: {{uniform: {{min: 10, max: 100}}}}, http: {{path: /p, {shaped}}}}}}}"
    )
    with pytest.raises(LoadgenError, match=r"2,000 requests would take [34]\.\d* GiB of memory"):
        made(kind, f"[{LOAD}]", KSERVE, tmp_path)


@pytest.mark.parametrize("shape", ["[length]", "[length, 3]", "[length, length]"])
@pytest.mark.parametrize("order", [1, -1])
def test_the_size_of_a_body_hangs_on_its_length_alone(shape, order):
    """Whatever was asked before; never far below what is built, nor far above where it grows evenly."""
    part = f"{{path: /p, json: '{{v}}', values: {{v: {{uniform: {{min: 0, max: 1}}, shape: {shape}}}}}}}"
    profile = parse_profile(
        f"name: t\nkinds: {{k: {{length: 9, http: {part}}}}}\nphases: [{LOAD}]\n", "t.yaml"
    )
    (maker,) = make_kinds(profile, parse_target(KSERVE), {})
    lengths = [1, 2, 3, 48, 100, 130][::order]
    sizes = {n: maker.size(Wanted(n)) for n in lengths}
    assert maker.most([Wanted(1), Wanted(130)]) > 1
    assert {n: maker.size(Wanted(n)) for n in lengths} == sizes
    for n in lengths:
        [message] = maker.messages([Wanted(n)], np.random.default_rng(1))
        built = 300 + len(message.request.body)
        assert 0.97 * built < sizes[n] < (1.03 if shape != "[length, length]" else 1.3) * built
