"""An answer counts only when it was read: what is no answer of the model is told, known or not."""

import json
import math
import sys
import tracemalloc
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from answers import answers, as_grpc, as_http, corruptions, declared

from loadgen.records import AnswerTemplate, ModelFacts, TensorSpec
from loadgen.wire import kserve_grpc, kserve_http
from loadgen.wire.errors import ProtocolError
from loadgen.wire.known import KnownAnswers
from loadgen.wire.kserve_http import join_bytes
from loadgen.workload.outputs import declared_outputs

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"
WIRES = {
    "http": (as_http, kserve_http.check_answer, kserve_http.read_infer_response),
    "grpc": (as_grpc, kserve_grpc.check_answer, lambda _, body: kserve_grpc.read_infer_response(body)),
}
wires = pytest.mark.parametrize("wire", WIRES)


def heads(tensors):
    return [(t.name, t.datatype, t.shape) for t in tensors]


@wires
@given(answers())
def test_a_right_answer_is_right_and_leaves_what_is_like_it(wire, outputs):
    make, check, read = WIRES[wire]
    fields, body = make(outputs)
    template = check(declared(outputs), fields, body)
    assert isinstance(template, AnswerTemplate), template
    known = KnownAnswers()
    known.learn(HEAD, len(HEAD + body), template)
    assert known[len(HEAD + body)].fits(HEAD + body)
    assert heads(read(fields, body)) == [(n, d, s) for n, d, s, _ in outputs]


@wires
@given(st.data())
def test_a_corrupted_answer_is_a_failure_or_has_the_same_outputs(wire, data):
    """And whatever looks like a known answer decodes to one."""
    make, check, read = WIRES[wire]
    outputs = data.draw(answers())
    fields, body = make(outputs)
    known = KnownAnswers()
    known.learn(HEAD, len(HEAD + body), check(declared(outputs), fields, body))
    wrong = data.draw(corruptions(body))
    said = check(declared(outputs), fields, wrong)
    like = known.get(len(HEAD + wrong))
    if isinstance(said, str):
        assert said.strip()
        assert like is None or not like.fits(HEAD + wrong)
    else:
        by_name = sorted(heads(read(fields, wrong)))
        assert by_name == sorted((n, d, s) for n, d, s, _ in outputs)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"<html><body>Please log in</body></html>", "Please log in"),
        (b"", "the body is empty"),
        (b'{"error":"CUDA out of memory"}', "CUDA out of memory"),
        (b'{"error":"late","outputs":[]}', "late"),
        (b'{"model_name":"m","outputs":[{"name":"OUT","da', '{"model_name":"m"'),
        (b'{"model_name":"m","outputs":[]}', "without outputs"),
        (b'{"model_name":"m"}', "not a KServe v2 answer"),
        (b"[1,2]", "not a KServe v2 answer"),
        (b"null", "not a KServe v2 answer"),
        (b'{"outputs":[7]}', "without a name"),
        (b"\xff\xfe\0garbage", "garbage"),
        (b"[" * 100_000, "not a KServe v2 answer"),
        (b'{"outputs":[{"name":"y","datatype":"FP32","shape":[-1,-1],"data":[0]}]}', "shape"),
        (b'{"outputs":[{"name":"y","datatype":"FP32","shape":[1.0],"data":[0]}]}', "shape"),
        (b'{"outputs":[{"name":"y","datatype":"FP32","shape":[true],"data":[0]}]}', "shape"),
    ],
)
def test_what_is_no_answer_over_http_is_said_with_its_first_words(body, words):
    said = kserve_http.check_answer({"y": ("FP32", (1,))}, {}, body)
    assert words in said
    assert len(said) < 450


NAN, INFINITY = float("nan"), float("inf")
GOOD_FLOATS = [[0.5], [1], [NAN], [INFINITY], [-INFINITY], [None], [-0.0]]
BAD_FLOATS = [["x"], ["1.5"], [True], [[1, 2]], [10**400], [-(10**400)], {}, [{}]]
JSON = {  # what is right, and what is not
    "FP16": ([*GOOD_FLOATS, [65504], [65519.9]], [*BAD_FLOATS, [65520], [-1e6]]),
    "BF16": ([*GOOD_FLOATS, [3.3895313892515355e38]], [*BAD_FLOATS, [3.4e38], [-1e300]]),
    "FP32": ([*GOOD_FLOATS, [3.4028235e38]], [*BAD_FLOATS, [3.5e38], [1e300], [-1e300], [2**128]]),
    "FP64": ([*GOOD_FLOATS, [1e300], [1.7976931348623157e308]], BAD_FLOATS),
    "INT64": (
        [[1], [-5], [2**63 - 1], [-(2**63)], [[1]]],
        [[1.5], [1.0], ["1"], [2**63], [-(2**63) - 1], [None], [True], "7", None],
    ),
    "INT8": ([[127], [-128]], [[128], [-129]]),
    "UINT8": ([[0], [255]], [[-1], [256]]),
    "UINT64": ([[2**64 - 1]], [[-1], [2**64]]),
    "BOOL": ([[True], [0], [1]], [[2], [-1], ["no"], [None], [0.5], [[]], [1, 0], 3, True]),
    "BYTES": (
        [["a"], [""], ["中文🙂"]],
        [[1], [None], [b"a".hex(), ""], ["\ud800"], [["a", "b"]], [True], "a"],
    ),
    "FLOAT": ([], [[1.0]]),
}


def as_json(datatype, shape, data, **more):
    output = {"name": "y", "datatype": datatype, "shape": shape, "data": data}
    return json.dumps({"outputs": [output]} | more).encode()


@pytest.mark.parametrize("datatype", JSON)
def test_json_values_are_of_their_datatype(datatype):
    """Alone, and as the last of many."""
    right, wrong = JSON[datatype]
    many = {"BYTES": "a", "BOOL": False}.get(datatype, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for good, data in [*((True, data) for data in right), *((False, data) for data in wrong)]:
            said = kserve_http.check_answer({"y": (datatype, (1,))}, {}, as_json(datatype, [1], data))
            assert isinstance(said, AnswerTemplate) == good, (data, said)
            if isinstance(data, list) and len(data) == 1 and not isinstance(data[0], list):
                body = as_json(datatype, [2000], [many] * 1999 + data)
                said = kserve_http.check_answer({"y": (datatype, (-1,))}, {}, body)
                assert (said is None) == good, (data, said)


@pytest.mark.parametrize("text", [b"1e400", b"-1e400", b"[1e400]", b"1" * 400, b"1" * 400 + b".0"])
@pytest.mark.parametrize("datatype", ["FP32", "FP64"])
def test_a_number_that_no_float_can_hold_is_no_infinity(datatype, text):
    body = as_json(datatype, [3], [0, float("nan"), 77]).replace(b"77", text)
    assert f"no {datatype}" in kserve_http.check_answer({"y": (datatype, (3,))}, {}, body)


@given(st.lists(st.floats(width=32) | st.integers(-9, 9) | st.none(), max_size=9))
def test_json_floats_are_read_as_numpy_has_them(values):
    nones = [NAN if value is None else value for value in values]
    for datatype, dtype in (("FP32", "<f4"), ("FP64", "<f8")):
        [read] = kserve_http.read_infer_response({}, as_json(datatype, [len(values)], values))
        np.testing.assert_array_equal(np.frombuffer(read.data, dtype), np.array(nones, dtype))
    if all(math.isnan(value) or abs(value) in (0, INFINITY) or 1e-30 < abs(value) < 3e38 for value in nones):
        [read] = kserve_http.read_infer_response({}, as_json("BF16", [len(values)], values))
        wide = (np.frombuffer(read.data, "<u2").astype("<u4") << 16).view("<f4")
        np.testing.assert_allclose(wide, np.array(nones, "<f4"), rtol=2**-8)


@pytest.mark.parametrize("error", [None, "", {}, False])
def test_an_error_of_null_is_none(error):
    body = as_json("FP32", [1], [1], error=error)
    assert isinstance(kserve_http.check_answer({"y": ("FP32", (1,))}, {}, body), AnswerTemplate)


@pytest.mark.parametrize("coding", ["utf-16", "utf-16-le", "utf-32", "utf-8", "utf-8-sig"])
def test_json_is_utf_8(coding):
    body = as_json("FP32", [1], [1]).decode().encode(coding)
    said = kserve_http.check_answer({"y": ("FP32", (1,))}, {}, body)
    assert isinstance(said, AnswerTemplate) == coding.startswith("utf-8"), said


@pytest.mark.parametrize(
    ("coding", "right"),
    [
        ("", True),
        ("identity", True),
        ("Identity, ", True),
        ("gzip", False),
        ("identity, gzip", False),
        ("br", False),
    ],
)
def test_an_empty_content_encoding_is_identity(coding, right):
    fields = {"content-encoding": coding}
    said = kserve_http.check_answer({"y": ("FP32", (1,))}, fields, as_json("FP32", [1], [1]))
    assert isinstance(said, AnswerTemplate) if right else f"{coding!r} was not asked for" in said


@wires
@pytest.mark.parametrize(
    ("most", "shape", "answered", "right"),
    [
        (None, (-1,), (1, 2), True),  # loose metadata: no configuration was read
        (None, (-1,), (), True),
        (None, (1, 16), (2, 16), False),
        (None, (-1, 2), (3, 2), True),
        (0, (-1,), (1, 2), False),
        (8, (-1,), (1, 2), True),  # with the batch axis
        (8, (-1,), (2,), False),
        (8, (-1,), (2, 2), False),
    ],
)
def test_a_rank_that_differs_is_a_fault_only_where_the_configuration_was_read(
    wire, most, shape, answered, right
):
    facts = ModelFacts("m", "", ("1",), most, (), (TensorSpec("y", "UINT8", shape),))
    make, check, _ = WIRES[wire]
    raw = bytes(int(np.prod(answered)))
    said = check(declared_outputs(facts, 1), *make([one("y", "UINT8", answered, raw)]))
    assert isinstance(said, AnswerTemplate) if right else "the model declares" in said
    assert "INT8" in check(declared_outputs(facts, 1), *make([one("y", "INT8", answered, raw)]))
    assert "no output 'y'" in check(declared_outputs(facts, 1), *make([one("z", "UINT8", answered, raw)]))


def typed(n):
    """Of n values in the message's own fields."""
    message = pb.ModelInferResponse()
    message.outputs.add(name="y", datatype="FP32", shape=[n]).contents.fp32_contents.extend([0.5] * n)
    return message.SerializeToString()


def placed(n):
    """Of n outputs in shared memory."""
    message = pb.ModelInferResponse()
    for at in range(n):
        output = message.outputs.add(name=f"y{at}", datatype="FP32", shape=[2])
        output.parameters["shared_memory_region"].string_param = "r"
    return message.SerializeToString()


@pytest.mark.parametrize(
    ("check", "fields", "body", "kept"),
    [
        (kserve_http.check_answer, {}, as_json("FP32", [9], [0.5] * 9), True),
        (kserve_http.check_answer, {}, as_json("FP32", [900], [0.5] * 900), False),
        (kserve_http.check_answer, {}, as_json("BYTES", [1], ["a" * 2000]), False),
        (kserve_http.check_answer, *as_http([("y", "FP32", (900,), bytes(3600))]), True),
        (kserve_grpc.check_answer, {}, typed(9), True),
        (kserve_grpc.check_answer, {}, typed(900), False),
        (kserve_grpc.check_answer, *as_grpc([("y", "FP32", (900,), bytes(3600))]), True),
        (partial(kserve_grpc.check_answer, in_memory=True), {}, placed(60), True),
    ],
)
def test_of_values_in_a_text_nothing_is_kept(check, fields, body, kept):
    """They are never the same again; what is in common of tensors in raw form, or elsewhere, is."""
    template = check({}, fields, body)
    assert isinstance(template, AnswerTemplate) if kept else template is None
    assert not kept or body.startswith(template.prefix)


def one(name="y", datatype="FP32", shape=(2, 3), raw=bytes(24)):
    return (name, datatype, shape, raw)


@wires
@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        ([one()], None),
        ([one(shape=(2, 4), raw=bytes(32))], None),  # the model leaves that axis open
        ([one(shape=(1, 3), raw=bytes(12))], "declares FP32 [2, -1]"),  # rows of another request
        ([one(shape=(6,))], "declares FP32 [2, -1]"),
        ([one(datatype="INT32")], "INT32 [2, 3], but the model declares FP32"),
        ([one("z")], "no output 'y'"),
        ([one(), one("z")], "'z', which the model does not declare"),
        ([one(), one()], "twice"),
        ([one(raw=bytes(20))], "do not fit FP32 [2, 3]"),
        ([one(datatype="FLOAT")], "no KServe v2 datatype"),
    ],
)
def test_an_answer_is_held_against_the_models_outputs(wire, outputs, words):
    make, check, _ = WIRES[wire]
    fields, body = make(outputs)
    said = check({"y": ("FP32", (2, -1))}, fields, body)
    assert isinstance(said, AnswerTemplate) if words is None else words in said, said


@wires
def test_a_model_that_declares_nothing_must_answer_something(wire):
    make, check, _ = WIRES[wire]
    assert isinstance(check({}, *make([one()])), AnswerTemplate)
    assert "without outputs" in check({}, *make([]))


def test_a_compressed_body_is_named():
    fields = {"content-encoding": "gzip"}
    assert "'gzip' was not asked for" in kserve_http.check_answer({}, fields, b"\x1f\x8b\x08")


@pytest.mark.parametrize("wire", WIRES)
@given(raw=st.binary(max_size=30))
def test_elements_of_bytes_must_fill_their_tensor(wire, raw):
    """A known head does not make a known answer: each element has a length of its own."""
    make, check, _ = WIRES[wire]
    good = join_bytes([b"ab", b"c"]) + join_bytes([bytes(max(0, len(raw) - 15))])
    shape, size = (3,), len(good)
    raw = raw[:size].ljust(size, b"\0")
    fields, body = make([("y", "BYTES", shape, good)])
    known = KnownAnswers()
    known.learn(b"", len(body), check({"y": ("BYTES", shape)}, fields, body))
    _, other = make([("y", "BYTES", shape, raw)])
    right = isinstance(check({"y": ("BYTES", shape)}, fields, other), AnswerTemplate)
    assert known[len(other)].fits(other) == right


def test_outputs_in_shared_memory_come_without_bytes():
    text = (
        b'{"outputs":[{"name":"y","datatype":"FP32","shape":[2],"parameters":{"shared_memory_region":"r"}}]}'
    )
    message = pb.ModelInferResponse()
    message.outputs.add(name="y", datatype="FP32", shape=[2]).parameters[
        "shared_memory_region"
    ].string_param = "r"
    for check, body in (
        (kserve_http.check_answer, text),
        (kserve_grpc.check_answer, message.SerializeToString()),
    ):
        plain = check({"y": ("FP32", (2,))}, {}, body)
        assert "without data" in plain
        in_memory = partial(check, in_memory=True)
        assert isinstance(in_memory({"y": ("FP32", (2,))}, {}, body), AnswerTemplate)
        assert "declares" in in_memory({"y": ("FP32", (3,))}, {}, body)


def test_what_is_known_is_bounded_and_prefers_the_last():
    known = KnownAnswers()
    for n in range(3000):
        known.learn(b"h", n, AnswerTemplate(b"%d" % n))
    assert len(known) <= 1024
    for n in range(20):
        known.learn(b"h", 5, AnswerTemplate(b"%02d" % n))
    assert known[5].prefixes == tuple(b"h%02d" % n for n in range(19, 11, -1))
    known.learn(b"", 6, AnswerTemplate(bytes(70_000)))
    assert 6 not in known


@pytest.mark.parametrize("rest", [False, True])
def test_what_is_known_is_bounded_in_bytes(rest):
    """Measured, with all that it holds."""
    known = KnownAnswers()
    tracemalloc.start()
    before, most = tracemalloc.get_traced_memory()[0], 0
    for n in range(1000):
        pieces = tuple((30_000 + at, bytes(1)) for at in range(200)) if rest else ()
        known.learn(b"h", (n,), AnswerTemplate(bytes(30_000), pieces))
        most = max(most, tracemalloc.get_traced_memory()[0] - before)
    tracemalloc.stop()
    assert len(known) > 0
    assert most < 5 * 2**20


def test_reading_raises_for_outputs_that_are_not_here():
    body = (
        b'{"outputs":[{"name":"y","datatype":"FP32","shape":[1],"parameters":{"shared_memory_region":"r"}}]}'
    )
    with pytest.raises(ProtocolError, match="output y"):
        kserve_http.read_infer_response({}, body)
