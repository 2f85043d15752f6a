"""FP32 parity is judged by the size of the answers: neither large ones fail by it nor small ones pass."""

import numpy as np
import pytest

from loadgen.convert import ladder
from loadgen.convert.convert import convert
from loadgen.convert.encoder import load_encoder
from loadgen.convert.options import ConvertOptions, SourceOptions
from loadgen.convert.parity import (
    LARGEST,
    ONNX_VS_TORCH,
    ParityMissedError,
    ParityPoint,
    comparable,
    limits,
    measure,
    require,
    torch_run,
    verdict,
)
from loadgen.convert.sources import find_source

LARGE = ("tests.support.modules:Large", ("x:FP32:batch,64",))
BARRED = ("tests.support.modules:Barred", ("x:FP32:batch,64",))
NOTHING = ("tests.support.modules:Nothing", ("x:FP32:batch,64",))
TINY = ("tests.support.modules:Tiny", ("x:FP32:batch,64",))


def point(max_abs, peak, **more):
    columns = {"gaps": np.array([max_abs]), "peaks": np.array([peak])} | more
    return ParityPoint(ONNX_VS_TORCH, 1, 1, 1.0, max_abs, max_abs, peak, **columns)


def encoder(source, tensors):
    return load_encoder(find_source(source, SourceOptions(tensors=tensors)), None)


def test_the_limit_is_a_share_of_the_largest_answer():
    points = [point(1e-7, 0.5), point(1e-7, 2.0), point(float("nan"), float("nan"))]
    assert [float(one[0]) for one in limits(points)] == pytest.approx(
        [0.5 * LARGEST, 2 * LARGEST, 0.02 * LARGEST]
    )
    assert limits([]) == []
    assert verdict(points[:2]) is None
    assert verdict([point(1e-7, 0.0), point(1e-7, 2.0)]) is None  # a point of zeros among others
    assert "allowed is max abs 0.0001, 0.0001 of the largest magnitude" in verdict(
        [*points[:2], point(3e-4, 1.0)]
    )
    with pytest.raises(ParityMissedError, match=r"failed at 1 of 3 points, worst .* max abs nan"):
        require(points)


def test_an_error_where_answers_are_small_does_not_hide_behind_large_ones():
    """As of a sum over positions: one at length 1 and 512 at length 512; 4 % wrong at length 1."""
    with pytest.raises(
        ParityMissedError,
        match=r"failed at 1 of 2 points, worst .* max abs 0.04 .*allowed is max abs 0.000512",
    ):
        require([point(0.04, 1.0), point(1e-3, 512.0)])


def test_answers_in_the_millions_may_differ_by_their_rounding(tmp_path):
    """By more than 0.0001, which is what reordering a sum of numbers of that size costs."""
    source, tensors = LARGE
    options = ConvertOptions(name="m", repository=tmp_path, source=SourceOptions(tensors=tensors))
    result = convert(source, options)
    assert max(p.peak for p in result.parity) > 1e6
    assert result.sidecar["parity"]["passed"]
    assert result.sidecar["parity"]["allowed_of_peak"] == LARGEST


def test_answers_of_a_millionth_must_still_be_right():
    """All of them wrong, and none by more than 0.0001."""
    model = encoder(*TINY)
    right = torch_run(model)
    found = measure(model, lambda feeds: right(feeds) * np.float32(1.5), [(1, 1), (3, 1)])
    assert max(p.max_abs for p in found) < 1e-4
    with pytest.raises(ParityMissedError, match=r"worst 'onnx = torch' .* 0.0001 of the largest magnitude"):
        require(found)
    require(measure(model, right, [(1, 1), (3, 1)]))


@pytest.mark.parametrize(
    "change", [lambda a: np.where(a > -1e8, a * 2, a), lambda a: np.where(a > -1e8, a, a * 2)]
)
def test_a_mark_among_the_scores_hides_no_wrong_answer(change):
    """-1e9 for a class that is not allowed is no answer to measure the others by, but has to be there."""
    model = encoder(*BARRED)
    right = torch_run(model)
    good, bad = (measure(model, run, [(1, 1), (3, 1)]) for run in (right, lambda feeds: change(right(feeds))))
    assert verdict(good) is None
    assert 10 < max(p.peak for p in good) < 100
    assert "parity failed at 2 of 5 points" in verdict(bad)
    for precision in ("fp32", "fp16"):
        assert ladder.climb(model, {"right": right}, precision).passed
        assert not ladder.climb(model, {"wrong": lambda feeds: change(right(feeds))}, precision).passed


def test_only_marks_are_shrunk():
    """A probability among a thousand that are next to nothing is an answer, and so is one among the millions."""
    for answers in (
        np.geomspace(1e-12, 0.99, 50),
        np.geomspace(1e4, 1e6, 50),
        np.zeros(3),
        [np.nan, 2, 1],
    ):
        want = np.float32(answers)
        a, b = comparable(want, want)
        np.testing.assert_array_equal(a, want)
        np.testing.assert_array_equal(b, want)
    a, b = comparable(np.float32([2, -1, -1e9]), np.float32([2, -1, -5e8]))
    assert (a.tolist(), b.tolist()) == ([2, -1, -2], [2, -1, -1])


def test_the_same_infinity_is_no_difference():
    """As of a class that is never allowed; another one, or none, is."""
    want = np.float32([[1, 2, -np.inf], [3, 1, np.inf]])
    a, b = comparable(want, want)
    assert np.abs(a - b).max() == 0
    for other in (-want, np.nan_to_num(want)):
        a, b = comparable(want, other)
        assert not np.abs(a - b).max() < 1e30
    model = encoder("tests.support.modules:Masked", ("x:FP32:batch,64",))
    right = torch_run(model)
    require(measure(model, right, [(1, 1), (3, 1)]))
    assert ladder.climb(model, {"right": right}, "fp32").passed
    with pytest.raises(ParityMissedError, match="max abs inf"):
        require(measure(model, lambda feeds: np.nan_to_num(right(feeds)), [(1, 1), (3, 1)]))


def test_each_column_is_judged_by_its_own_size():
    """A hundredth beside hundreds: twice its value is wrong, and a share of the largest would not see it."""
    good = point(1e-6, 200.0, gaps=np.array([1e-6, 1e-6]), peaks=np.array([200.0, 0.01]))
    bad = point(0.01, 200.0, gaps=np.array([1e-6, 0.01]), peaks=np.array([200.0, 0.01]))
    assert limits([good])[0].tolist() == pytest.approx([0.02, 0.002])
    assert verdict([good]) is None
    assert "max abs 0.01 in column 1, mean abs 0.01, cosine 1.000000; allowed is max abs 0.002" in verdict(
        [bad]
    )


@pytest.mark.parametrize(
    ("factory", "says"),
    [
        (
            "OffByOne",
            "worst 'onnx = torch' .* max abs 1 .*allowed is max abs 0, as more than 0.001 of these whole numbers differ",
        ),
        ("TwoScales", "worst 'onnx = torch'"),
        ("Counts", "worst 'the same asked again'"),
        ("Random", "worst 'the same asked again'|worst 'onnx = torch'"),
    ],
)
def test_a_wrong_export_is_not_published(tmp_path, factory, says):
    """Wrong while it is exported, or never the same twice."""
    tensors = ("x:FP32:batch,64:-1..1",)
    options = ConvertOptions(
        name="m", repository=tmp_path, max_batch=1, source=SourceOptions(tensors=tensors)
    )
    with pytest.raises(ParityMissedError, match=says):
        convert(f"tests.support.modules:{factory}", options)
    assert list(tmp_path.iterdir()) == []


def test_whole_numbers_beyond_fp32s_digits_are_compared_as_they_are(tmp_path):
    tensors = ("x:FP32:batch,64:-1..1",)
    options = ConvertOptions(name="m", repository=tmp_path, source=SourceOptions(tensors=tensors))
    result = convert("tests.support.modules:Places", options)
    assert {p.exact for p in result.parity} == {True}
    assert {p.max_abs for p in result.parity} == {0.0}
    model = encoder("tests.support.modules:Places", tensors)
    right = torch_run(model)
    assert right({"x": np.zeros((1, 64), np.float32)}).tolist() == [[2**24 + 1]]
    with pytest.raises(ParityMissedError, match="of these whole numbers differ"):
        require(measure(model, lambda feeds: right(feeds) + 1, [(2, 1)]))
    assert not ladder.climb(model, {"off": lambda feeds: right(feeds) + 1}, "fp32").passed


def test_rare_events_may_differ_by_what_a_sigmoid_is_right_to(tmp_path):
    """Which is a share of 1, not of the answer: 0.0001 of probabilities of 0.0001 is less than anybody computes."""
    tensors = ("x:FP32:batch,64:-1..1",)
    options = ConvertOptions(name="m", repository=tmp_path, source=SourceOptions(tensors=tensors))
    result = convert("tests.support.modules:Rare", options)
    assert 1e-5 < max(p.peak for p in result.parity) < 1e-2
    model = encoder("tests.support.modules:Rare", tensors)
    right = torch_run(model)
    assert ladder.climb(model, {"near": lambda feeds: right(feeds) + np.float32(1e-7)}, "fp32").passed
    for wrong in (
        lambda feeds: right(feeds) * np.float32(1.01),
        lambda feeds: right(feeds) + np.float32(1e-5),
    ):
        with pytest.raises(ParityMissedError):
            require(measure(model, wrong, [(1, 1), (3, 1)]))
        assert not ladder.climb(model, {"wrong": wrong}, "fp32").passed


def test_whole_numbers_of_many_places_may_differ_in_a_few():
    """A pixel among thousands between two classes; the same share of few numbers is none."""
    model = encoder("tests.support.modules:Classes", ("x:FP32:batch,64:-1..1",))
    right = torch_run(model)

    def off(feeds, many):
        answers = right(feeds).copy()
        answers[:, :many] += 3
        return answers

    require(measure(model, lambda feeds: off(feeds, 4), [(1, 1), (3, 1)]))
    assert ladder.climb(model, {"few": lambda feeds: off(feeds, 4)}, "fp32").passed
    with pytest.raises(ParityMissedError, match=r"as more than 0.001 of these whole numbers differ"):
        require(measure(model, lambda feeds: off(feeds, 6), [(1, 1), (3, 1)]))
    climbed = ladder.climb(model, {"many": lambda feeds: off(feeds, 6)}, "fp32")
    assert "0.0012 of the whole numbers differ, more than 0.001" in climbed.faults[0]
    assert any(step.missed for step in climbed.steps)


def test_zeros_agree_with_zeros():
    """They have no direction, which is no error."""
    model = encoder(*NOTHING)
    assert ladder.climb(model, {"right": torch_run(model)}, "fp16").passed
    climbed = ladder.climb(model, {"wrong": lambda feeds: torch_run(model)(feeds) + 1}, "fp16")
    assert climbed.faults[0].endswith("max abs 1 > 0")
