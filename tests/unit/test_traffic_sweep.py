"""A sweep's text: configurations, loads, the order of the blocks; what is refused, and in which words."""

from collections import Counter
from pathlib import Path

import pytest

from loadgen.traffic.profile import ProfileError, parse_profile
from loadgen.traffic.sweep import load_sweep, parse_sweep

ROOT = Path(__file__).parents[2]
SWEEPS = sorted((ROOT / "traffic_profiles" / "sweeps").glob("*.yaml"))
TEXT = """
profile: traffic_profiles/mixed-lengths.yaml
seed: 7
loads: [{users: 4}, {users: 16, think: 10ms}, {rate: 40/s, arrivals: uniform}]
objectives: ["latency p99 < 500ms"]
base: {max_batch_size: 16}
configurations:
  - {name: as published}
  - {preferred: [4, 8], delay: 5ms, queue: {timeout: 1s, action: reject}}
grid:
  batching: [true, false]
  delay: [0ms, 2ms]
  set: {instance_group.0.count: [1, 2]}
"""


def sweep(text=TEXT):
    return parse_sweep(text, "s.yaml", ROOT)


def test_the_list_and_every_combination_of_the_grid_each_once():
    names = [one.name for one in sweep().candidates]
    assert names == [
        "as published",
        "preferred 4+8, delay 5 ms, queue timeout 1 s action reject",
        "batching on, delay 0, instance_group.0.count 1",
        "batching on, delay 0, instance_group.0.count 2",
        "batching on, delay 2 ms, instance_group.0.count 1",
        "batching on, delay 2 ms, instance_group.0.count 2",
        "batching off, instance_group.0.count 1",  # without batching a delay changes nothing: once
        "batching off, instance_group.0.count 2",
    ]
    assert all(one.changes.max_batch_size == 16 for one in sweep().candidates)


def test_the_settings_of_the_grid_and_who_has_each_value():
    assert sweep().axes() == [
        ("batching", [("on", [2, 3, 4, 5]), ("off", [6, 7])]),
        ("delay", [("0", [2, 3]), ("2 ms", [4, 5])]),
        ("instance_group.0.count", [("1", [2, 4, 6]), ("2", [3, 5, 7])]),
    ]


def test_blocks_are_interleaved_in_a_seeded_order():
    """Each round has every cell once, a configuration's loads together, and rounds and seeds differ in order."""
    read = sweep()
    blocks = read.blocks()
    cells = 8 * 3
    assert len(blocks) == cells * 3 == len({block.name for block in blocks})
    for number in range(3):
        part = blocks[number * cells : (number + 1) * cells]
        assert Counter((b.configuration, b.load) for b in part) == Counter(
            (c, load) for c in range(8) for load in range(3)
        )
        assert {b.round for b in part} == {number}
        visits = [b.configuration for b in part[::3]]
        assert sorted(visits) == list(range(8))  # three blocks a visit
        seeds = {(b.load, b.seed) for b in part}
        assert len(seeds) == 3  # at one load all configurations meet the same arrivals
    orders = [[b.configuration for b in blocks[n * cells : (n + 1) * cells]] for n in range(3)]
    assert orders[0] != orders[1] != orders[2]
    assert blocks == sweep().blocks()
    assert blocks != read.with_seed(8).blocks()


def test_no_two_sweep_seeds_share_a_block_seed_and_no_two_rounds_or_loads_of_one():
    """Counted up from the sweep's seed they did: --seed 8 sent in its first round what 7 had sent in its second."""
    seen = {}
    for seed in range(400):
        read = sweep().with_seed(seed) if seed < 5 else sweep().model_copy(update={"seed": seed})
        seeds = {(b.round, b.load): b.seed for b in read.blocks()}
        mine = [*seeds.values(), read.warm_seed]
        assert len(set(mine)) == 3 * 3 + 1
        assert not seen.keys() & set(mine), (seed, seen)
        assert all(0 <= one < 2**53 for one in mine)
        seen |= dict.fromkeys(mine, seed)


@pytest.mark.parametrize("place", range(3))
def test_a_block_warms_at_its_own_load(place):
    """Field case 24: a warm-up smaller than the concurrency leaves slots cold; here it is the load's own."""
    read = sweep()
    traffic = read.traffic()
    profile = parse_profile(read.block_text(traffic, read.loads[place]), "b", traffic.folder)
    warm, measured = profile.phases
    assert (warm.warmup, measured.warmup) == (True, False)
    assert list(profile.kinds) == list(traffic.kinds)
    assert [o.text for o in profile.objectives] == ["latency p99 < 500ms"]
    if measured.closed:
        assert warm.closed.users == measured.closed.users == read.loads[place].users
        assert warm.closed.requests >= measured.closed.users
        assert measured.closed.duration_ns == 10 * 10**9
        assert measured.closed.think_ns == (10**7 if place else 0)
    else:
        assert warm.open.rate[0].at_per_s == measured.open.rate[0].at_per_s == 40
        assert measured.open.arrivals.burstiness == 0
    window = parse_profile(read.warm_text(traffic, 10**9), "w")
    assert window.phases[0].closed.users == 16  # the busiest load's


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            ("delay: [0ms, 2ms]", "delays: [2ms]"),
            "s.yaml:12: grid.delays: unknown key (did you mean 'delay'?)",
        ),
        (("delay: [0ms, 2ms]", "delay: [2]"), "grid.delay[0]: 2 has no unit"),
        (("{users: 4}", "{users: 4, rate: 3/s}"), "loads[0]: needs exactly one of users, rate"),
        (("{users: 4}", "{users: 16, think: 10ms}"), "loads[1]: 16 users, think 10 ms is there twice"),
        (("seed: 7", "best: mean batch"), "best: 'mean batch' is nothing to be best in; allowed: requests/s"),
        (("p99 < 500ms", "p99 < 500"), "objectives[0]: objective 'latency p99 < 500'"),
        (("preferred: [4, 8]", "batching: false"), "batching: false goes with no setting"),
        (("{preferred", "{name: as published, preferred"), "[1].name: as published is there twice"),
    ],
)
def test_what_cannot_be_is_one_line(change, said):
    with pytest.raises(ProfileError) as refused:
        sweep(TEXT.replace(*change))
    assert said in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


def test_the_model_is_the_profiles_own():
    read = sweep()
    assert read.subject(read.traffic()) == "minilm"
    with pytest.raises(Exception, match=r"model .bert. is not in the profile; .* sends to: minilm"):
        sweep(TEXT + "model: bert\n").subject(read.traffic())


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_every_shipped_sweep_is_one(path):
    read = load_sweep(path)
    assert len(read.candidates) >= 12
    assert len(read.loads) >= 3
    assert read.subject(read.traffic()) == "minilm"


@pytest.mark.parametrize("grid", ["", "grid: {}", "grid: {set: {}}"])
def test_nothing_to_compare_is_refused(grid):
    with pytest.raises(ProfileError, match="what is compared"):
        sweep(f"profile: p.yaml\nloads: [{{users: 1}}]\n{grid}")


def test_a_sweep_that_is_missing_or_empty_is_called_a_sweep(tmp_path):
    with pytest.raises(ProfileError, match=r"no such file; name a sweep"):
        load_sweep(tmp_path / "no.yaml")
    (tmp_path / "empty.yaml").write_text("")
    with pytest.raises(
        ProfileError, match=r"empty; a sweep needs profile, loads, and grid or configurations"
    ):
        load_sweep(tmp_path / "empty.yaml")
