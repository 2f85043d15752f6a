"""Optimization profiles: shapes from the lengths of the traffic, and the batch that they allow."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.convert.calibration import profile_lengths
from loadgen.convert.config import FullTensor
from loadgen.convert.flavours import Exported, profiles_of
from loadgen.convert.profiles import ProfileError, Ranges, Span, buckets, ranges, served_batch, span
from loadgen.convert.serve_options import PlanOptions

IDS = FullTensor("ids", "INT64", ("batch", "length"))
PIXELS = FullTensor("pixels", "FP32", ("batch", 3, 224, 224))


def test_buckets_hold_equal_shares_of_the_traffic():
    lengths = [10] * 50 + [60] * 50 + [200] * 50
    assert buckets(lengths, 512, 3) == (Span(1, 10, 16), Span(17, 60, 64), Span(65, 200, 512))


def test_without_traffic_one_bucket_holds_everything():
    assert buckets([], 512, 3) == (Span(1, 128, 512),)
    assert buckets([], 48, 3) == (Span(1, 48, 48),)


def test_traffic_of_one_length_leaves_room_for_every_other():
    assert buckets([32] * 9, 512, 4) == (Span(1, 32, 32), Span(33, 512, 512))


@given(st.lists(st.integers(1, 4000), max_size=60), st.integers(1, 600), st.integers(1, 16))
def test_buckets_cover_every_length_once(lengths, longest, count):
    spans = buckets(lengths, longest, count)
    assert len(spans) <= count
    covered = np.concatenate([np.arange(s.low, s.high + 1) for s in spans])
    assert covered.tolist() == list(range(1, longest + 1))


def test_free_axes_are_the_batch_and_then_the_length():
    [one] = ranges([IDS, PIXELS], Span(1, 4, 8), [Span(1, 20, 64)])
    assert one.shapes == {
        "ids": ((1, 1), (4, 20), (8, 64)),
        "pixels": ((1, 3, 224, 224), (4, 3, 224, 224), (8, 3, 224, 224)),
    }


def test_the_largest_batch_is_the_engines_own_and_a_smallest_above_1_is_told():
    """Field case 30: an engine for batches of 64 to 300, a configuration that says 256, requests of 16."""
    largest, warnings = served_batch(ranges([IDS], span("64:128:300", "--plan-batch"), [Span(1, 20, 64)]))
    assert largest == 300
    assert len(warnings) == 1
    assert warnings[0].startswith("the engine's smallest batch is 64: the server will form smaller ones")


def test_an_engine_for_one_row_is_never_batched():
    """Field case 30: engine max batch 1 against a configuration's 16."""
    assert served_batch(ranges([IDS], Span(1, 1, 1), [Span(1, 20, 64)])) == (1, [])


def test_profiles_that_differ_allow_the_least_of_them():
    profiles = [Ranges({"x": ((1, 1), (2, 2), (high, 4))}) for high in (16, 8)]
    largest, warnings = served_batch(profiles)
    assert largest == 8
    assert warnings == [
        "profiles differ in their largest batch (0: 16, 1: 8); max_batch_size is the least of them"
    ]


@pytest.mark.parametrize("text", ["8", "1:2", "1:x:3", "4:2:8", "0:1:2", "1:9:8"])
def test_spans_that_are_none(text):
    with pytest.raises(ProfileError):
        span(text, "--plan-batch")


def test_lengths_come_from_every_phase_of_a_traffic_profile(tmp_path):
    file = tmp_path / "mix.yaml"
    file.write_text(
        "kinds:\n  short: {model: m, length: 12, weight: 3}\n  long: {model: m, length: {uniform: {min: 90, max: 110}}}\n"
        "phases:\n  - {name: a, open: {rate: [{duration: 4s, at: 100/s}]}}\n"
    )
    lengths = profile_lengths(file)
    assert 300 < len(lengths) < 500
    assert set(lengths) <= {12, *range(90, 111)}
    assert 0.65 < lengths.count(12) / len(lengths) < 0.85
    model = Exported((IDS,), (), max_length=256)
    profiles = profiles_of(model, 16, PlanOptions(traffic=str(file), buckets=2))
    shapes = [p.shapes["ids"] for p in profiles]
    assert [(low, high) for low, _, high in shapes] == [((1, 1), (16, 16)), ((1, 17), (16, 256))]
    assert shapes[0][1] == (16, 12)
    assert 95 <= shapes[1][1][1] <= 105
