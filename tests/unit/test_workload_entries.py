"""One row of given data: converted exactly, or refused with what is allowed."""

import base64
import json
import struct

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.workload.entries import EntryError, row_of
from loadgen.workload.fills import bf16_bytes

RANGES = {
    f"{sign}INT{bits}": (0, 2**bits - 1) if sign else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    for sign in ("", "U")
    for bits in (8, 16, 32, 64)
}
NUMPY = {"FP16": "<f2", "FP32": "<f4", "FP64": "<f8", "BOOL": "?"} | {
    name: f"<{'u' if name[0] == 'U' else 'i'}{int(name.lstrip('UINT')) // 8}" for name in RANGES
}


def refused(value, datatype, dims):
    with pytest.raises(EntryError) as caught:
        row_of(value, datatype, dims)
    return str(caught.value)


@pytest.mark.parametrize("datatype", sorted(RANGES))
def test_whole_numbers_are_exact_to_both_ends(datatype):
    low, high = RANGES[datatype]
    row = row_of([low, high, 1, 2.0], datatype, (4,))
    assert np.frombuffer(row.data, NUMPY[datatype]).tolist() == [low, high, 1, 2]
    assert refused([low - 1], datatype, (1,)).endswith(f"is beyond {datatype}; allowed: {low} to {high}")
    assert refused([high + 1, 0], datatype, (2,)).startswith(f"{high + 1} is beyond {datatype}")
    assert refused(1.5, datatype, ()) == f"1.5 is no whole number, as {datatype} needs"
    assert refused(float("nan"), datatype, ()) == f"nan is no whole number, as {datatype} needs"
    assert refused(1e300, datatype, ()).startswith("1e+300 is beyond")


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.just(3.0), min_size=1, max_size=5))
def test_64_bits_keep_every_digit_among_real_numbers(values):
    row = row_of(values, "INT64", (-1,))
    assert np.frombuffer(row.data, "<i8").tolist() == [int(v) for v in values]


@pytest.mark.parametrize(("datatype", "most", "over"), [("FP16", 65504.0, 65520.0), ("FP32", 3.4028234e38, 1e39), ("BF16", 3.3895314e38, 3.4e38)])  # fmt: skip
def test_real_numbers_are_rounded_but_not_to_infinity(datatype, most, over):
    """Case 6: plain numbers for FP16, converted."""
    row_of([most, -most, float("inf")], datatype, (3,))
    assert f"{over!r} is beyond {datatype}; allowed: -" in refused([over], datatype, (1,))
    assert refused([10**400], datatype, (1,)) == f"a whole number is beyond {datatype}"


def test_half_precision_of_plain_numbers():
    """Case 6: FP16 values of a JSON file need no base64."""
    row = row_of(json.loads("[[0.1, 65504], [1e-8, -2]]"), "FP16", (2, -1))
    assert row.shape == (2, 2)
    assert row.data == np.array([0.1, 65504, 1e-8, -2], "<f2").tobytes()


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False).filter(lambda v: abs(v) < 3.3e38)))
def test_bf16_of_singles_is_what_ml_dtypes_makes(values):
    """Case 5: from FP32, to nearest even, two bytes an element, and no ml_dtypes in the product."""
    row = row_of(values, "BF16", (-1,))
    assert row.data == np.array(values, np.float32).astype(ml_dtypes.bfloat16).tobytes()


@given(st.floats(allow_nan=False, allow_infinity=False).filter(lambda v: 1e-30 < abs(v) < 3.3e38))
def test_bf16_of_doubles_is_rounded_once(value):
    got = float((bf16_bytes(np.array([value])).astype("<u4") << 16).view("<f4")[0])
    for step in (-1, 1):
        other = (bf16_bytes(np.array([value])).astype("<i8") + step).astype("<u4")
        near = float((other << 16).view("<f4")[0])
        assert not np.isfinite(near) or abs(got - value) <= abs(near - value)


def test_a_double_just_past_a_tie_does_not_fall_back_on_it():
    """1 + 2^-8 + 2^-40 is nearer to 1 + 2^-7; through FP32 it would be the tie, which goes to 1."""
    assert row_of(1 + 2**-8 + 2**-40, "BF16", ()).data == b"\x81\x3f"
    assert row_of(1 + 2**-8, "BF16", ()).data == b"\x80\x3f"


def test_bf16_arrays_of_ml_dtypes_are_taken_as_they_are(tmp_path):
    np.save(tmp_path / "x.npy", np.array([1.5, -2], ml_dtypes.bfloat16))
    array = np.load(tmp_path / "x.npy")
    assert row_of(array, "BF16", (2,)).data == b"\xc0\x3f\x00\xc0"
    assert refused(array, "FP32", (2,)) == "values of numpy type |V2; allowed: numbers"


def test_booleans():
    assert row_of([True, False, 1, 0.0], "BOOL", (4,)).data == b"\1\0\1\0"
    assert refused([True, 2], "BOOL", (2,)) == "2 is no BOOL; allowed: true or false, 1 or 0"
    assert refused("yes", "BOOL", ()) == "'yes' is no BOOL; allowed: true or false"


@pytest.mark.parametrize("text", [b"\xff\xfe", "中文🙂".encode(), b"", b"a\0b", b"x" * 2**20])
def test_bytes_of_any_content_count_in_bytes(text):
    """Case 7: not UTF-8, characters of several bytes, empty, a zero byte, 1 MB."""
    data = struct.pack("<I", len(text)) + text
    encoded = {"b64": base64.b64encode(text).decode()}
    assert row_of(text, "BYTES", (1,)).data == data
    assert row_of(encoded, "BYTES", ()).data == data
    assert row_of([encoded], "BYTES", (1,)).data == data
    assert row_of({"data": [encoded], "shape": [1]}, "BYTES", (-1,)).data == data


def test_texts_of_json_are_utf8():
    row = row_of([["a", "中文🙂"], ["", {"b64": "//4="}]], "BYTES", (2, -1))
    assert row.shape == (2, 2)
    assert row.data == b"\1\0\0\0a\x0a\0\0\0" + "中文🙂".encode() + b"\0\0\0\0\2\0\0\0\xff\xfe"
    assert refused("\ud800", "BYTES", ()).endswith("is half a character; write {b64: ...} for bytes")
    assert refused(5, "BYTES", ()) == "5 is not text; allowed: text in quotes or {b64: ...}"
    assert refused({"b64": "a"}, "BYTES", ()) == "b64 'a' is not base64"
    assert refused([["a"], []], "BYTES", (2, 1)) == "its nested lists are not all of one size"


def test_numpy_text():
    assert row_of(np.array(["ab", "中"]), "BYTES", (2,)).data == b"\2\0\0\0ab\3\0\0\0" + "中".encode()
    assert row_of(np.array(["a", "中"], ">U9"), "BYTES", (2,)).data == b"\1\0\0\0a\3\0\0\0" + "中".encode()
    assert row_of(np.array([b"ab", b"cd"]), "BYTES", (2,)).data == b"\2\0\0\0ab\2\0\0\0cd"
    for value in (np.array([1]), np.array([(1, b"a")], "i4,S1"), np.array(["2020"], "M8[Y]")):
        assert refused(value, "BYTES", (1,)).endswith("allowed: text (numpy types S, U and V)")


@given(st.lists(st.binary(min_size=1, max_size=9), min_size=1, max_size=5))
def test_bytes_of_one_width_are_sent_whole_or_refused(texts):
    array = np.array(texts)
    width = array.dtype.itemsize
    padded = [text.ljust(width, b"\0") for text in texts]
    whole = b"".join(struct.pack("<I", width) + text for text in padded)
    assert row_of(array.view(f"V{width}"), "BYTES", (-1,)).data == whole
    if any(text.endswith(b"\0") for text in padded):
        assert refused(array, "BYTES", (-1,)).startswith(f"numpy type S{width} pads with zero bytes")
    else:
        assert row_of(array, "BYTES", (-1,)).data == whole


_ENDS = [*(float(2**bits) for bits in (7, 8, 31, 32, 63, 64)), float("inf"), 300.0, -1.0, 0.5, float("nan")]


@given(
    st.lists(st.sampled_from(_ENDS) | st.floats(), min_size=1, max_size=4),
    st.sampled_from(sorted(RANGES)),
    st.sampled_from(["f8", "f4", "f2", ">f8"]),
)
def test_real_numbers_are_the_same_whole_ones_or_refused(values, datatype, dtype):
    """2^63 is one more than INT64 holds, and the same real number as what it does hold."""
    with np.errstate(over="ignore"):
        array = np.array(values).astype(dtype)
    low, high = RANGES[datatype]
    given_ = array.astype(np.float64).tolist()
    if all(value.is_integer() and low <= int(value) <= high for value in given_):
        row = row_of(array, datatype, (-1,))
        assert np.frombuffer(row.data, NUMPY[datatype]).tolist() == [int(value) for value in given_]
    else:
        refused(array, datatype, (-1,))


def test_a_tensor_given_twice_is_refused():
    assert refused({"b64": "AAAA", "content": ["x"]}, "BYTES", (1,)).startswith("keys b64, content; allowed")
    assert refused({"data": [1], "content": [1]}, "FP32", (1,)).startswith("keys data, content; allowed")


def test_numbers_as_base64_are_raw():
    """Case 6: what needed base64 elsewhere may stay so."""
    raw = np.array([1, 2, 3, 4], "<f2").tobytes()
    told = {"b64": base64.b64encode(raw).decode()}
    assert row_of(told, "FP16", (2, 2)) == row_of([[1, 2], [3, 4]], "FP16", (2, 2))
    assert row_of({**told, "shape": [4]}, "FP16", (-1,)).shape == (4,)
    assert refused({"b64": "AA=="}, "FP16", (1,)) == "b64 holds 1 bytes, no multiple of the 2 of a FP16"
    assert refused({"b64": "Ag=="}, "BOOL", (1,)) == "b64 holds bytes that are neither 0 nor 1, as BOOL needs"


@pytest.mark.parametrize(
    ("value", "dims", "shape"),
    [
        (5, (), ()),
        (5, (1,), (1,)),
        ([5], (1,), (1,)),
        ([5], (1, 1), (1, 1)),
        (5, (-1,), (1,)),
        ([1, 2, 3, 4], (2, 2), (2, 2)),
        ([[1, 2], [3, 4]], (2, 2), (2, 2)),
        ([[1, 2], [3, 4]], (-1, 2), (2, 2)),
        ({"data": [1, 2, 3, 4, 5, 6], "shape": [3, 2]}, (-1, 2), (3, 2)),
        ({"content": [1, 2, 3, 4, 5, 6], "shape": [2, 3, 1]}, (-1, -1, 1), (2, 3, 1)),
        ({"data": [[1, 2], [3, 4]], "shape": [2, 2]}, (-1, -1), (2, 2)),
        ([[[1], [2]]], (1, -1, 1), (1, 2, 1)),
    ],
)
def test_shapes(value, dims, shape):
    assert row_of(value, "INT8", dims).shape == shape


@pytest.mark.parametrize(
    ("value", "dims", "says"),
    [
        (5, (33,), "1 value given, shape needs 33"),
        ([5, 6], (2, 2), "2 values given, shape [2, 2] needs 4"),
        ([[1, 2]], (2, 2), "shape [1, 2] given; allowed: [2, 2]"),
        ([1, 2, 3], (3, -1), "shape [3] given; allowed: [3, any]; nest the lists or write {data: [...], shape: [...]}"),
        ([[1, 2], [3]], (-1, -1), "its nested lists are not all of one size"),
        ({"data": [1, 2, 3], "shape": [2, 2]}, (-1, -1), "3 values given, shape [2, 2] needs 4"),
        ({"data": [1, 2], "shape": [2]}, (3,), "shape [2] given; allowed: [3]"),
        ({"data": [[1, 2]], "shape": [2, 1]}, (-1, -1), "its lists are nested as [1, 2], its shape says [2, 1]"),
        ({"data": [1], "shape": [1.0]}, (1,), "shape [1.0]; allowed: a list of whole numbers"),
        ({"values": [1]}, (1,), "keys values; allowed: {b64: ...} or {data: [...], shape: [...]}"),
        (None, (1,), "None is no INT8; allowed: numbers"),
        ("5", (1,), "'5' is no INT8; allowed: numbers"),
        ([1, "a"], (2,), "'a' is no INT8; allowed: numbers"),
    ],
)  # fmt: skip
def test_refused(value, dims, says):
    """Case 1: "1 value given, shape needs 33"."""
    assert refused(value, "INT8", dims) == says
