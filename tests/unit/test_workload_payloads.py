import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.records import ModelFacts, TensorSpec, Wanted
from loadgen.traffic.profile import parse_profile
from loadgen.workload.fills import bf16_bytes
from loadgen.workload.fit import FitError
from loadgen.workload.lengths import quantile_lengths
from loadgen.workload.payloads import build, most_variants, pool_rng, size_of
from loadgen.workload.rows import NO_DATA

NUMPY = {"FP16": "<f2", "FP32": "<f4", "FP64": "<f8", "BOOL": "?"} | {
    f"{sign}INT{bits}": f"<{kind}{bits // 8}"
    for sign, kind in (("", "i"), ("U", "u"))
    for bits in (8, 16, 32, 64)
}


def kind(text):
    whole = f"name: t\nkinds:\n  k: {text}\nphases:\n  - {{name: p, closed: {{users: 1, requests: 1}}}}\n"
    return parse_profile(whole, "t.yaml").kinds["k"]


def facts(*inputs, most=8, **parameters):
    specs = tuple(spec if isinstance(spec, TensorSpec) else TensorSpec(*spec) for spec in inputs)
    return ModelFacts("m", "", ("1",), most, specs, (), parameters)


def bert(**parameters):
    names = ("input_ids", "attention_mask", "token_type_ids")
    return facts(
        *((name, "INT64", (-1,)) for name in names),
        **({"vocab_size": "30522", "max_length": "128"} | parameters),
    )


def pool(text, model, seed=1, most=512):
    """Variants of the kind's own lengths, as many as are good for it."""
    given = kind(text)
    law = given.length.law if given.length else None
    n = most_variants(given, model, most=most)
    wanted = [Wanted(None)] * n if law is None else [Wanted(int(k)) for k in quantile_lengths(law, n)]
    return build(given, model, wanted, pool_rng(seed, "k"))


def values(tensor):
    return np.frombuffer(tensor.data, dtype=NUMPY[tensor.datatype]).reshape(tensor.shape)


def refused(text, model):
    with pytest.raises(FitError) as caught:
        pool(text, model)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("kind 'k', model 'm': ")
    return str(caught.value).removeprefix("kind 'k', model 'm': ")


def test_an_encoder_gets_ids_mask_and_types():
    made = pool("{model: m, batch: 2, length: {uniform: {min: 4, max: 128}}}", bert())
    assert len(made) == 512
    for payload in made:
        ids, mask, types = payload.tensors
        assert [t.name for t in payload.tensors] == ["input_ids", "attention_mask", "token_type_ids"]
        assert {t.shape for t in payload.tensors} == {(2, payload.length)}
        assert payload.items == 2
        assert (values(mask) == 1).all()
        assert (values(types) == 0).all()
    ids = np.concatenate([values(p.tensors[0]).ravel() for p in made])
    assert 0 <= ids.min() < 10
    assert 30510 < ids.max() < 30522


def test_each_want_gets_its_own_variant_in_order():
    given = kind("{model: m, length: {uniform: {min: 4, max: 128}}}")
    wanted = [Wanted(n, output) for n in (128, 4, 4, 60) for output in (None, 7)]
    made = build(given, bert(), wanted, pool_rng(1, "k"))
    assert [p.length for p in made] == [128, 128, 4, 4, 4, 4, 60, 60]
    assert [p.tensors[0].shape for p in made] == [(1, want.length) for want in wanted]
    assert len({p.tensors[0].data for p in made}) == 8


def test_lengths_of_a_trace_need_no_law_but_must_fit():
    given = kind("{model: m}")
    assert build(given, bert(), [Wanted(9)], pool_rng(1, "k"))[0].tensors[1].shape == (1, 9)
    with pytest.raises(
        FitError, match="lengths up to 129, but the model takes at most 128; allowed: 9 to 128"
    ):
        build(given, bert(), [Wanted(9), Wanted(129)], pool_rng(1, "k"))


def test_small_spaces_are_used_without_repeats_while_they_last():
    made = pool("{model: m}", facts(("x", "BOOL", (8,))), most=40)
    assert len({p.tensors[0].data for p in made}) == 40


def test_the_same_seed_the_same_pool():
    text = "{model: m, length: {uniform: {min: 4, max: 9}}}"
    assert pool(text, bert()) == pool(text, bert())
    assert pool(text, bert()) != pool(text, bert(), seed=2)
    assert pool_rng(1, "a").random() != pool_rng(1, "b").random()


def test_how_many_variants_memory_allows():
    """64 MiB, but at least 8, unless those pass 1 GiB."""

    def n(values, **limits):
        return most_variants(kind("{model: m}"), facts(("x", "FP32", (values,))), **limits)

    assert (n(1000), n(1000, most=20)) == (512, 20)
    assert n(2**20) == 16
    assert n(2**23) == 8
    assert n(2**26) == 4
    assert n(2**28 - 1) == 1
    free = facts(("x", "FP32", (-1,)))
    assert size_of(kind("{model: m}"), free, NO_DATA, Wanted(25)) == 100


@pytest.mark.parametrize("datatype", sorted(NUMPY))
def test_every_datatype_has_its_raw_form_and_varies(datatype):
    made = pool("{model: m}", facts(("x", datatype, (3, 40))))
    got = np.stack([values(p.tensors[0]) for p in made])
    assert got.shape == (512, 1, 3, 40)
    if datatype == "BOOL":
        assert got.mean() == pytest.approx(0.5, abs=0.02)
    elif datatype.startswith("FP"):
        assert got.astype(np.float64).mean() == pytest.approx(0, abs=0.02)
        assert got.astype(np.float64).std() == pytest.approx(1, abs=0.02)
    else:
        assert (got.min(), got.max()) == (0, 100)


def test_laws_for_tensors():
    model = facts(("i", "INT8", (50,)), ("u", "FP32", (50,)), ("n", "FP64", (50,)), ("c", "INT32", (2,)), ("w", "FP16", (50,)), ("b", "BOOL", (1,)),
                  ("s", "FP32", (1,)))  # fmt: skip
    inputs = ("i: {integers: {min: -128, max: 127}}, u: {uniform: {min: 5, max: 6}}, n: {normal: {mean: 100, sd: 0.5}}, "
              "c: {constant: 7}, w: {integers: {min: 1, max: 2}}, b: {constant: true}, s: {constant: 0.5}")  # fmt: skip
    made = pool(f"{{model: m, inputs: {{{inputs}}}}}", model)
    got = {t.name: np.stack([values(p.tensors[i]) for p in made]) for i, t in enumerate(made[0].tensors)}
    assert (got["i"].min(), got["i"].max()) == (-128, 127)
    assert 5 <= got["u"].min() < 5.01
    assert 5.99 < got["u"].max() <= 6
    assert (got["n"].mean(), got["n"].std()) == (pytest.approx(100, abs=0.02), pytest.approx(0.5, abs=0.02))
    assert set(got["c"].ravel().tolist()) == {7}
    assert set(got["w"].ravel().tolist()) == {1.0, 2.0}
    assert got["b"].all()
    assert set(got["s"].ravel().tolist()) == {0.5}


def test_uint64_to_its_end():
    made = pool(
        "{model: m, inputs: {x: {integers: {min: 18446744073709551615, max: 18446744073709551615}}}}",
        facts(("x", "UINT64", (1,))),
    )
    assert made[0].tensors[0].data == b"\xff" * 8


def elements(data):
    found = []
    while data:
        (n,) = struct.unpack_from("<I", data)
        found.append(data[4 : 4 + n])
        data = data[4 + n :]
    return found


def test_strings_have_the_kinds_length_in_bytes():
    made = pool("{model: m, batch: 2, length: {fixed: 33}}", facts(("t", "BYTES", (1,))))
    for payload in made:
        texts = elements(payload.tensors[0].data)
        assert [len(text) for text in texts] == [33, 33]
        assert payload.tensors[0].shape == (2, 1)
        assert all(text.decode().replace(" ", "a").isalpha() for text in texts)
    assert len({p.tensors[0].data for p in made}) == len(made)


def test_strings_by_their_own_law():
    made = pool("{model: m, inputs: {t: {text: {min: 2, max: 5}}}}", facts(("t", "BYTES", (3,))))
    assert {len(text) for p in made for text in elements(p.tensors[0].data)} == {2, 3, 4, 5}
    fixed = pool("{model: m, inputs: {t: {constant: 中文}}}", facts(("t", "BYTES", (1,))))
    assert fixed[0].tensors[0].data == b"\x06\0\0\0" + "中文".encode()


def test_a_free_axis_of_strings_is_their_number():
    made = pool("{model: m, length: 5}", facts(("t", "BYTES", (-1,))))
    assert made[0].tensors[0].shape == (1, 5)
    assert all(8 <= len(text) <= 64 for text in elements(made[0].tensors[0].data))


@given(st.floats(width=32, allow_nan=False))
def test_bf16_is_the_nearest(value):
    got = bf16_bytes(np.array([value], np.float32)).astype(np.uint32)
    back = float((got << 16).view(np.float32)[0])
    for step in (-1, 1):  # neither neighbour is nearer, and at a tie ours is even
        near = float(((got + np.uint32(step % 2**32)) << 16).view(np.float32)[0])
        if np.isfinite(near) and np.isfinite(back) and np.isfinite(value):
            assert abs(back - value) <= abs(near - value)
            if abs(back - value) == abs(near - value) != 0:
                assert got[0] % 2 == 0


@pytest.mark.parametrize(
    ("bits", "rounded"),
    [
        (0x3F800000, 0x3F80),
        (0x3F808000, 0x3F80),
        (0x3F818000, 0x3F82),
        (0x3F808001, 0x3F81),
        (0x3F807FFF, 0x3F80),
        (0x7F7FFFFF, 0x7F80),
        (0x80000000, 0x8000),
    ],
)
def test_bf16_rounds_to_even(bits, rounded):
    assert bf16_bytes(np.array([bits], np.uint32).view(np.float32)).tolist() == [rounded]


def test_bf16_keeps_nan_and_goes_on_the_wire_in_two_bytes():
    assert bf16_bytes(np.array([0x7F800001], np.uint32).view(np.float32))[0] & 0x7FFF > 0x7F80
    made = pool("{model: m, inputs: {x: {constant: 1.5}}}", facts(("x", "BF16", (2,)), most=0))
    assert made[0].tensors[0].data == b"\xc0\x3f\xc0\x3f"


def test_batch_axis_by_max_batch_size():
    def shapes(most, spec, text):
        made = pool(text, facts(spec, most=most))
        return made[0].tensors[0].shape, made[0].items

    assert shapes(8, ("x", "FP32", (3,)), "{model: m, batch: 4}") == ((4, 3), 4)
    assert shapes(0, ("x", "FP32", (3,)), "{model: m}") == ((3,), 1)
    assert shapes(0, ("x", "FP32", ()), "{model: m}") == ((), 1)
    assert shapes(None, ("x", "FP32", (-1, 3)), "{model: m, batch: 4}") == ((4, 3), 4)
    assert shapes(None, ("x", "FP32", (-1, -1)), "{model: m, batch: 4, length: 9}") == ((4, 9), 4)
    assert shapes(None, ("x", "FP32", (2, 3)), "{model: m}") == ((2, 3), 1)
    full = "{model: m, length: 9, inputs: {x: {shape: [length]}}}"
    assert shapes(None, ("x", "FP32", (-1,)), full) == ((9,), 1)


def test_more_than_one_free_axis_takes_a_shape():
    model = facts(("image", "FP32", (3, -1, -1)))
    said = refused("{model: m, length: 4}", model)
    assert (
        said
        == "input 'image' leaves more than one axis free ([3, -1, -1]); add inputs: {image: {shape: [3, length, 16]}}"
    )
    made = pool("{model: m, length: 4, inputs: {image: {shape: [3, length, 16]}}}", model)
    assert made[0].tensors[0].shape == (1, 3, 4, 16)
    fixed = pool("{model: m, inputs: {image: {normal: {mean: 5, sd: 0.1}, shape: [3, 2, 2]}}}", model)
    assert (fixed[0].tensors[0].shape, fixed[0].length) == ((1, 3, 2, 2), None)
    assert values(fixed[0].tensors[0]).mean() == pytest.approx(5, abs=0.2)


def test_optional_inputs_are_sent_when_named():
    model = facts(("x", "FP32", (1,)), TensorSpec("o", "FP32", (1,), optional=True))
    assert [t.name for t in pool("{model: m}", model)[0].tensors] == ["x"]
    assert [t.name for t in pool("{model: m, inputs: {o: {constant: 1}}}", model)[0].tensors] == ["x", "o"]


def test_token_ids_need_a_vocabulary():
    model = facts(("input_ids", "INT64", (-1,)))
    assert "add to kinds.k: inputs: {input_ids: {integers: {min: 0, max: 30521}}}" in refused(
        "{model: m, length: 3}", model
    ).removeprefix("input")
    made = pool("{model: m, length: 30, inputs: {input_ids: {integers: {min: 5, max: 9}}}}", model)
    assert set(np.concatenate([values(p.tensors[0]).ravel() for p in made]).tolist()) == {5, 6, 7, 8, 9}


def test_position_ids_count():
    made = pool("{model: m, length: 4}", facts(("x", "FP32", (-1,)), ("position_ids", "INT64", (-1,))))
    assert values(made[0].tensors[1]).tolist() == [[0, 1, 2, 3]]


@pytest.mark.parametrize(
    ("text", "model", "says"),
    [
        # Case 2: batch 16 asked of a model that takes no batches.
        ("{model: m, batch: 16}", facts(("x", "FP32", (1, 32, 100)), most=0), "batch 16, but the model takes no batches (max_batch_size 0); allowed: 1"),
        ("{model: m, batch: 16}", facts(("x", "FP32", (3,))), "batch 16, but its max_batch_size is 8; allowed: 1 to 8"),
        ("{model: m, batch: 2}", facts(("x", "FP32", (3,)), most=None), "batch 2, but no input has a free first dimension; allowed: 1"),
        ("{model: m, length: 200}", bert(), "lengths from 200 to 200, but the model takes at most 128"),
        ("{model: m, length: {uniform: {min: 4, max: 129}}}", bert(), "lengths up to 129, but the model takes at most 128; allowed: 4 to 128"),
        ("{model: m, length: 5}", bert(max_length="many"), "its parameter max_length is 'many'; allowed: a whole number of 1 or more"),
        ("{model: m}", bert(), "input 'input_ids' has a free dimension; give the kind a length, e.g. length: 32"),
        ("{model: m, length: 5}", facts(("x", "FP32", (3,))), "has a length, but no input of the model has a free dimension; take length out"),
        ("{model: m, inputs: {imags: {constant: 1}}}", facts(("image", "FP32", (3,))), "no input 'imags' (did you mean 'image'?); allowed: image"),
        ("{model: m, inputs: {x: {shape: [4]}}}", facts(("x", "FP32", (3,))), "input 'x' has shape [4] in the profile; allowed: [3]"),
        ("{model: m, inputs: {x: {shape: [3, 1]}}}", facts(("x", "FP32", (-1,))), "input 'x' has shape [3, 1] in the profile; allowed: [any]"),
        ("{model: m, length: 2, inputs: {x: {shape: [length]}}}", facts(("x", "FP32", (3,))), "input 'x' has shape [length] in the profile; allowed: [3]"),
        ("{model: m}", facts(("x", "FP8", (3,))), "input 'x' has datatype FP8; allowed: FP16, BF16, FP32, FP64, INT8, INT16, INT32, INT64, UINT8, UINT16, UINT32, UINT64, BOOL, BYTES"),
        ("{model: m, inputs: {x: {normal: {mean: 0, sd: 1}}}}", facts(("x", "INT8", (3,))), "input 'x': normal cannot fill INT8; allowed: integers, constant"),
        ("{model: m, inputs: {x: {integers: {min: 0, max: 200}}}}", facts(("x", "INT8", (3,))), "input 'x': 0 to 200 is beyond INT8; allowed: -128 to 127"),
        ("{model: m, inputs: {x: {constant: hi}}}", facts(("x", "FP32", (3,))), "input 'x': constant 'hi' cannot fill FP32"),
        ("{model: m, inputs: {x: {constant: 1.5}}}", facts(("x", "INT32", (3,))), "input 'x': constant 1.5 cannot fill INT32"),
        ("{model: m, inputs: {x: {text: {min: 1, max: 2}}}}", facts(("x", "BOOL", (3,))), "input 'x': text cannot fill BOOL; allowed: constant"),
        ("{model: m, length: 5, inputs: {input_ids: {integers: {min: 0, max: 30522}}}}", bert(), "input 'input_ids': 0 to 30522 leaves the vocabulary; allowed: 0 to 30521"),
        ("{model: m}", facts(("x", "FP64", (2**28,))), "a request would have up to 2,147,483,648 bytes; allowed: 2,147,483,647"),
    ],
)  # fmt: skip
def test_refused_before_anything_is_sent(text, model, says):
    assert refused(text, model) == says
