from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.lab.kinds import make_kinds
from loadgen.lab.shots import make_shots
from loadgen.lab.target import make_transport
from loadgen.planfile import save_plan
from loadgen.planstory import describe_plan
from loadgen.schedule import CYCLE, ScheduleError, plan, rate_curve, share, slice_plan
from loadgen.target import parse_target
from loadgen.traffic.phases import Segment
from loadgen.traffic.profile import load_profile, parse_profile

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "loadgen" / "lab" / "demo.yaml"
PROFILES = [*sorted((ROOT / "traffic_profiles").glob("*.yaml")), DEMO]


def profile(phases, kinds="k: {model: m}", seed=1):
    lines = "".join(f"  - {phase}\n" for phase in phases)
    return parse_profile(f"name: t\nseed: {seed}\nkinds: {{{kinds}}}\nphases:\n{lines}", "t.yaml")


def opened(rate, arrivals="uniform", name="p"):
    return f"{{name: {name}, open: {{arrivals: {arrivals}, rate: {rate}}}}}"


def due(rate, arrivals="uniform", seed=1):
    return plan(profile([opened(rate, arrivals)], seed=seed)).phases[0].due_ns


def test_uniform_starts_at_the_start_with_constant_gaps():
    times = due("[{duration: 2s, at: 300/s}]")
    assert len(times) == 600
    assert times[:4].tolist() == [0, 3333333, 6666667, 10_000_000]
    assert times[-1] == round(599 / 300 * 1e9)
    assert times.dtype == np.int64


@pytest.mark.parametrize(
    ("rate", "n"),
    [
        ("[{duration: 1s, at: 2.5/s}]", 3),
        ("[{duration: 7s, at: 0.7/s}]", 5),
        ("[{duration: 10m, at: 1/m}]", 10),
    ],
)
def test_uniform_counts_the_rounded_up_expectation(rate, n):
    assert len(due(rate)) == n


def test_a_ramp_from_nothing_follows_the_square_root():
    times = due("[{duration: 10s, from: 0/s, to: 20/s}]")  # t^2 per s^2 expected after t
    assert np.abs(times - np.sqrt(np.arange(100)) * 1e9).max() <= 1


def test_a_ramp_to_nothing_mirrors_it():
    times = due("[{duration: 10s, from: 20/s, to: 0/s}]")
    assert np.abs(times - (10 - np.sqrt(100 - np.arange(100))) * 1e9).max() <= 1


def test_nothing_is_due_in_a_pause():
    times = due("[{duration: 1s, at: 10/s}, {duration: 5s, at: 0/s}, {duration: 1s, at: 10/s}]")
    assert times.tolist() == [k * 10**8 for k in range(10)] + [6 * 10**9 + k * 10**8 for k in range(10)]


def test_a_leading_pause_is_waited_for():
    assert due("[{duration: 5s, at: 0/s}, {duration: 1s, at: 2/s}]").tolist() == [5 * 10**9, 55 * 10**8]


rates = st.one_of(st.just(0.0), st.floats(0.01, 5000))
segments = st.lists(
    st.builds(
        lambda d, a, b: Segment.model_construct(duration_ns=d, from_per_s=a, to_per_s=b, at_per_s=None),
        st.integers(10**6, 3600 * 10**9), rates, rates,
    ),
    min_size=1, max_size=6,
)  # fmt: skip


@given(segments, st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=50))
def test_the_inverse_undoes_the_count(pieces, shares):
    curve = rate_curve(pieces)
    x = np.sort(np.array(shares)) * curve.total
    t = curve.inverse(x)
    assert np.allclose(curve.counted(t), x, rtol=1e-9, atol=1e-6)
    assert (np.diff(t) >= -1e-3).all()
    assert (t >= 0).all()
    assert (t <= curve.at_ns[-1]).all()


@given(segments)
def test_the_count_is_the_integral_of_the_rate(pieces):
    curve = rate_curve(pieces)
    middles = (curve.at_ns[:-1] + curve.at_ns[1:]) / 2  # exact for straight lines
    areas = curve.rate_per_s(middles) * np.diff(curve.at_ns) * 1e-9
    assert np.allclose(np.diff(curve.count), areas, rtol=1e-6, atol=2e-9 * max(curve.total, 1))


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(0, 99), st.integers(0, 99)), min_size=1, max_size=5)
)
def test_even_arrivals_deliver_the_integral_of_the_rate_exactly(pieces):
    """Before the end of each piece as many are due as were asked for until then: never one more or less."""
    integral = np.cumsum([d * (a + b) for d, a, b in pieces])  # twice, in whole numbers
    if integral[-1] < 2:
        return
    rate = "[" + ", ".join(f"{{duration: {d}s, from: {a}/s, to: {b}/s}}" for d, a, b in pieces) + "]"
    ends = np.cumsum([d for d, _, _ in pieces]) * 10**9
    assert np.searchsorted(due(rate), ends).tolist() == (-(-integral // 2)).tolist()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(0, 200), st.integers(0, 200)), min_size=1, max_size=4),
    st.sampled_from(["uniform", "poisson", "{gamma: {burstiness: 6}}", "{gamma: {burstiness: 0.25}}"]),
    st.integers(0, 2**40),
)
def test_due_times_ascend_inside_the_span(pieces, law, seed):
    if sum(d * (a + b) for d, a, b in pieces) < 2:
        return
    rate = "[" + ", ".join(f"{{duration: {d}s, from: {a}/s, to: {b}/s}}" for d, a, b in pieces) + "]"
    times = due(rate, law, seed)
    assert (np.diff(times) >= 0).all()
    assert len(times) == 0 or (times[0] >= 0 and times[-1] < sum(d for d, _, _ in pieces) * 10**9)


@pytest.mark.parametrize(
    ("law", "burstiness"),
    [("poisson", 1.0), ("{gamma: {burstiness: 4}}", 4.0), ("{gamma: {burstiness: 0.25}}", 0.25)],
)
def test_the_law_is_the_law(law, burstiness):
    times = due("[{duration: 1000s, at: 100/s}]", law, seed=11)
    gaps = np.diff(times)
    assert len(times) == pytest.approx(100_000, abs=4 * np.sqrt(burstiness * 100_000))
    assert gaps.var() / gaps.mean() ** 2 == pytest.approx(burstiness, rel=0.05)
    assert abs(np.corrcoef(gaps[:-1], gaps[1:])[0, 1]) < 0.015  # one gap tells nothing of the next
    counts = np.bincount(times // 10**9, minlength=1000)
    assert counts.var() / counts.mean() == pytest.approx(burstiness, rel=0.2)


def test_the_count_of_poisson_varies_as_poisson():
    counts = np.array([len(due("[{duration: 10s, at: 40/s}]", "poisson", seed)) for seed in range(300)])
    assert counts.mean() == pytest.approx(400, abs=4)
    assert counts.var() == pytest.approx(400, rel=0.3)


def test_a_poisson_ramp_has_the_ramps_density():
    times = due("[{duration: 100s, from: 0/s, to: 1000/s}]", "poisson") * 1e-9
    for quarter, part in ((50, 0.25), (75, 0.5625)):
        assert (times < quarter).mean() == pytest.approx(part, abs=0.01)


def test_the_same_seed_gives_the_same_plan_and_another_does_not():
    given = profile(
        [opened("[{duration: 5s, at: 100/s}]", "poisson")], "a: {model: m}, b: {model: m}", seed=3
    )
    one, two, other = plan(given), plan(given, 3), plan(given, 4)
    assert (one.seed, other.seed) == (3, 4)
    for field in ("due_ns", "kind", "draw"):
        mine, same, differs = (getattr(each.phases[0], field) for each in (one, two, other))
        assert (mine == same).all()
        assert len(mine) != len(differs) or (mine != differs).any()


TEXTS = """
name: t
kinds:
  ask: {model: m, chat: {}, length: {uniform: {min: 3, max: 40}}, output: {uniform: {min: 1, max: 9}}, weight: 3}
  cut: {model: m, completion: {}, lengths: [{in: 9, out: 2}, {in: 4, out: 8}], cancel: {share: 0.3, after: 5ms}}
phases:
  - {name: warm, warmup: true, closed: {users: 2, requests: 7}}
  - {name: load, open: {rate: [{duration: 3s, at: 20/s}]}}
"""


def sent(given, planned):
    """Every byte of every arrival, in order, each with when it is due."""
    target = parse_target("openai+http://127.0.0.1:1/v1")
    made = make_shots(make_transport(target), target, given, make_kinds(given, target, {}), planned, 5)
    for phase, picks in zip(planned.phases, made.picks, strict=True):
        times = [None] * len(picks) if phase.due_ns is None else phase.due_ns.tolist()
        yield from zip(times, [made.shots[pick].prepared.data for pick in picks], strict=True)


def test_equal_seeds_give_equal_bytes_and_other_seeds_others(tmp_path):
    """The plan's file, and what is written to the connection."""
    given, plans = parse_profile(TEXTS, "t.yaml"), {}
    for name, seed in (("one", 3), ("again", 3), ("other", 4)):
        plans[name] = plan(given, seed)
        save_plan(plans[name], tmp_path / name, given.sha256)
    one, again, other = ((tmp_path / name).read_bytes() for name in plans)
    assert one == again != other
    one, again, other = (list(sent(given, each)) for each in plans.values())
    assert one == again
    assert not {data for _, data in one} & {data for _, data in other}


def test_the_streams_are_the_ones_we_had():
    """Pins numpy's streams: when this fails after an upgrade, old seeds plan other traffic; say so in the changelog."""
    phase = plan(
        profile([opened("[{duration: 5s, at: 100/s}]", "poisson")], "a: {model: m}, b: {model: m}", seed=7)
    ).phases[0]
    bursty = due("[{duration: 5s, at: 100/s}]", "{gamma: {burstiness: 4}}", seed=7)
    pinned = (
        phase.due_ns[:4].tolist(),
        phase.kind[:8].tolist(),
        phase.draw[:3].tolist(),
        bursty[:4].tolist(),
    )
    assert pinned == PINNED


PINNED = (
    [6899522, 17513911, 23892000, 24388581],
    [1, 0, 0, 0, 1, 0, 1, 0],
    [3453924699, 1330569666, 4068880084],
    [945539, 1022977, 22828827, 31306575],
)


def test_editing_one_phase_leaves_the_others():
    first, second = (
        opened("[{duration: 5s, at: 50/s}]", "poisson", "a"),
        opened("[{duration: 5s, at: 70/s}]", "poisson", "b"),
    )
    edited = opened("[{duration: 9s, at: 99/s}]", "{gamma: {burstiness: 3}}", "a")
    before, after = plan(profile([first, second])), plan(profile([edited, second]))
    assert len(before.phases[0].due_ns) != len(after.phases[0].due_ns)
    for field in ("due_ns", "kind", "draw"):
        assert (getattr(before.phases[1], field) == getattr(after.phases[1], field)).all()


def test_two_phases_and_two_purposes_do_not_share_numbers():
    phases = [opened("[{duration: 9s, at: 50/s}]", "poisson", name) for name in ("a", "b")]
    a, b = plan(profile(phases)).phases
    n = min(len(a.due_ns), len(b.due_ns))
    assert (a.due_ns[:n] != b.due_ns[:n]).all()
    assert (a.draw[:n] == b.draw[:n]).mean() < 0.01


def test_kinds_come_by_weight_and_never_at_weight_0():
    kinds = "a: {model: m, weight: 3}, b: {model: m, weight: 0}, c: {model: m}, d: {model: m, weight: 0}"
    whole = plan(profile([opened("[{duration: 100s, at: 1000/s}]")], kinds))
    shares = np.bincount(whole.phases[0].kind, minlength=4) / 100_000
    assert whole.kinds == ("a", "b", "c", "d")
    assert shares[[1, 3]].tolist() == [0, 0]
    assert shares[0] == pytest.approx(0.75, abs=0.006)
    assert (whole.phases[0].kind.dtype, whole.phases[0].draw.dtype) == (np.int16, np.uint32)


def test_a_closed_loop_is_planned_as_draws():
    phase = plan(profile(["{name: c, closed: {users: 8, requests: 64, duration: 3s, think: 10ms}}"])).phases[
        0
    ]
    assert (phase.loop, phase.due_ns, phase.measured) == ("closed", None, True)
    assert (phase.users, phase.requests, phase.duration_ns, phase.think_ns) == (8, 64, 3 * 10**9, 10**7)
    assert len(phase.kind) == len(phase.draw) == 64
    assert len(np.unique(phase.draw)) == 64
    [timed] = plan(profile(["{name: c, closed: {users: 8, duration: 3s}}"])).phases
    assert len(timed.kind) == len(timed.draw) == CYCLE
    assert len(np.unique(timed.draw)) > 0.99 * CYCLE


def test_a_negative_seed_is_refused():
    with pytest.raises(ScheduleError, match="seed -1: allowed"):
        plan(profile(["{name: c, closed: {users: 1, requests: 1}}"]), -1)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.integers(1, 60), st.integers(1, 500), st.integers(0, 99))
def test_slices_are_a_partition(n, users, requests, seed):
    phases = [
        opened("[{duration: 3s, at: 30/s}]", "poisson"),
        f"{{name: c, closed: {{users: {users}, requests: {requests}}}}}",
    ]
    kinds = "a: {model: m, length: {uniform: {min: 1, max: 90}}}, b: {model: m, chat: {}, lengths: [{in: 7, out: 9}]}"
    whole = plan(profile(phases, kinds, seed=seed))
    slices = [slice_plan(whole, k, n) for k in range(n)]
    for index in (0, 1):
        original = whole.phases[index]
        for field in ("due_ns", "kind", "draw", "length", "output")[index:]:
            back = np.empty_like(getattr(original, field))
            for k, each in enumerate(slices):
                back[k::n] = getattr(each.phases[index], field)
            assert (back == getattr(original, field)).all()
    closed = [each.phases[1] for each in slices]
    assert sum(phase.requests for phase in closed) == requests
    if requests >= min(n, users):
        assert sum(phase.users for phase in closed) == users
    assert all((phase.users == 0) == (phase.requests == 0) for phase in closed)


@given(st.integers(0, 10**9), st.integers(1, 100))
def test_shares_add_up_and_are_even(total, n):
    parts = [share(total, k, n) for k in range(n)]
    assert sum(parts) == total
    assert max(parts) - min(parts) <= 1


def test_one_slice_is_the_plan_and_a_wrong_one_is_refused():
    whole = plan(profile(["{name: c, closed: {users: 3, duration: 1s}}"]))
    assert slice_plan(whole, 0, 1).phases[0].users == 3
    assert [slice_plan(whole, k, 5).phases[0].users for k in range(5)] == [1, 1, 1, 0, 0]
    assert slice_plan(whole, 0, 2).phases[0].requests is None
    for k, n in ((2, 2), (-1, 2), (0, 0)):
        with pytest.raises(ScheduleError, match=f"slice {k} of {n}"):
            slice_plan(whole, k, n)


def test_a_plan_in_figures():
    kinds = "a: {model: m, weight: 3}, b: {model: m}"
    phases = [
        opened("[{duration: 10s, at: 40/s}, {duration: 10s, at: 80/s}]"),
        "{name: c, closed: {users: 2, duration: 1s}}",
    ]
    story, closed = describe_plan(plan(profile(phases, kinds)))
    told = story.arrivals
    assert (story.planned, story.span_ns, story.mean_per_s) == (1200, 20 * 10**9, 60.0)
    assert (told.peak_per_s, told.peak_at_ns, told.bin_ns) == (80.0, 10 * 10**9, 10**9)
    gaps = np.array([1 / 40] * 400 + [1 / 80] * 799)
    assert told.gap_cv == pytest.approx(gaps.std() / gaps.mean(), rel=1e-6)
    assert told.dispersion == pytest.approx(400 * 20 / 19 / 60)
    assert story.kinds["a"].share == pytest.approx(0.75, abs=0.05)
    assert sum(kind.share for kind in story.kinds.values()) == pytest.approx(1)
    assert sum(kind.planned for kind in story.kinds.values()) == 1200
    assert (closed.planned, closed.users, closed.mean_per_s, closed.span_ns) == (None, 2, None, 10**9)


def test_even_gaps_have_no_variation():
    told = describe_plan(plan(profile([opened("[{duration: 5s, at: 40/s}]")])))[0].arrivals
    assert (told.bin_ns, told.peak_per_s) == (250_000_000, 40.0)
    assert (told.gap_cv, told.dispersion) == (0, 0)


def test_there_are_profiles():
    names = {path.stem for path in PROFILES}
    assert names >= {
        "steady",
        "ramp-to-saturation",
        "burst",
        "diurnal",
        "mixed-lengths",
        "closed-loop",
        "demo",
    }


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_every_profile_we_ship_plans(path):
    shipped = load_profile(path)
    stories = describe_plan(plan(shipped))
    assert shipped.name == path.stem
    assert shipped.objectives
    assert not stories[0].measured
    for phase, story in zip(shipped.phases, stories, strict=True):
        if phase.open:
            assert story.planned == pytest.approx(phase.open.expected, rel=0.2)


def test_the_demo_is_short():
    demo = load_profile(DEMO)
    assert sum(phase.duration_ns or 0 for phase in plan(demo).phases) <= 35 * 10**9
