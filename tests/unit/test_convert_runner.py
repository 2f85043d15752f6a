"""The python-backend runner outside Triton: pads, runs once, splits, and one bad request fails alone."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.convert.runner import model as runner

LIMITS = runner.Limits({"vocab_size": "50", "max_length": "9", "pad_token_id": "1", "type_vocab_size": "2"})


def request(ids, mask=None):
    ids = np.asarray(ids, np.int64)
    return {
        "input_ids": ids,
        "attention_mask": np.ones_like(ids) if mask is None else np.asarray(mask, np.int64),
    }


class Model:
    """Answers id x mask a token, or its sum a row; keeps what it was given."""

    def __init__(self, per_token):
        self.per_token, self.calls = per_token, []

    def __call__(self, feeds):
        self.calls.append(feeds)
        tokens = (feeds["input_ids"] * feeds["attention_mask"]).astype(np.float32)[:, :, None]
        return tokens if self.per_token else tokens.sum(1)


def test_pads_with_the_pad_id_and_masks_with_zero_in_one_run():
    model = Model(per_token=False)
    answers = runner.answer_all(model, [request([[5, 6]]), request([[7, 8, 9], [2, 3, 4]])], LIMITS, False)
    assert len(model.calls) == 1
    assert model.calls[0]["input_ids"].tolist() == [[5, 6, 1], [7, 8, 9], [2, 3, 4]]
    assert model.calls[0]["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1], [1, 1, 1]]
    assert [a.tolist() for a in answers] == [[[11.0]], [[24.0], [9.0]]]


def test_equal_lengths_are_not_copied_for_padding():
    array = np.ones((2, 3), np.int64)
    assert runner.pad_concat([array], [3], 0) is array


def test_per_token_answers_are_cut_to_each_request_s_own_length():
    answers = runner.answer_all(Model(True), [request([[5, 6]]), request([[7, 8, 9]])], LIMITS, True)
    assert [a[..., 0].tolist() for a in answers] == [[[5.0, 6.0]], [[7.0, 8.0, 9.0]]]
    assert all(a.flags.c_contiguous for a in answers)


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 9)), min_size=1, max_size=6),
    st.booleans(),
    st.randoms(),
)
def test_batched_equals_alone(shapes, per_token, random):
    batch = [request([[random.randrange(50) for _ in range(n)] for _ in range(rows)]) for rows, n in shapes]
    together = runner.answer_all(Model(per_token), batch, LIMITS, per_token)
    alone = [runner.answer_all(Model(per_token), [one], LIMITS, per_token)[0] for one in batch]
    assert [t.tolist() for t in together] == [a.tolist() for a in alone]


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (request([[2] * 10]), "length 10 is beyond the model's maximum of 9"),
        (request([[2, 50]]), "input_ids holds 50; allowed is 0..49"),
        (request([[-3, 2]]), "input_ids holds -3; allowed is 0..49"),
        (request(np.zeros((1, 0))), "input_ids has the shape [1, 0]"),
        (request([2, 3]), "input_ids has the shape [2]"),
        (request([[2, 3]], mask=[[1]]), "attention_mask has the shape [1, 1], input_ids [1, 2]"),
        (
            request([[2, 3]]) | {"token_type_ids": np.array([[0, 2]])},
            "token_type_ids holds 2; allowed is 0..1",
        ),
        (runner.Refused("the input attention_mask is missing"), "attention_mask is missing"),
    ],
)
def test_a_bad_request_fails_alone(bad, says):
    good = [request([[4, 5]]), request([[6]])]
    if isinstance(bad, dict) and "token_type_ids" in bad:
        good = [g | {"token_type_ids": np.zeros_like(g["input_ids"])} for g in good]
    first, refused, last = runner.answer_all(Model(False), [good[0], bad, good[1]], LIMITS, False)
    assert (first.tolist(), last.tolist()) == ([[9.0]], [[6.0]])
    assert says in str(refused)


def test_a_model_that_fails_answers_each_sender():
    def broken(_feeds):
        raise RuntimeError("out of memory")

    answers = runner.answer_all(broken, [request([[4]]), request([[5]])], LIMITS, False)
    assert [str(a) for a in answers] == ["out of memory"] * 2


def test_threads_share_the_cores(monkeypatch):
    monkeypatch.setattr(runner.os, "sched_getaffinity", lambda _: set(range(8)))
    assert [runner.default_threads(n) for n in (1, 2, 3, 16)] == [8, 4, 2, 1]


class FakeTensor:
    def __init__(self, name, array):
        self.name, self.array = name, array

    def as_numpy(self):
        return self.array


@pytest.fixture
def backend(monkeypatch):
    """Triton's python module, as far as the runner uses it."""
    fake = SimpleNamespace(
        get_input_tensor_by_name=lambda request, name: request.get(name),
        Tensor=FakeTensor,
        TritonError=str,
        InferenceResponse=lambda outputs=(), error=None: SimpleNamespace(outputs=outputs, error=error),
    )
    monkeypatch.setattr(runner, "pb_utils", fake)


def test_execute_answers_each_request_in_order(backend, monkeypatch, tmp_path):
    opened = []
    model = Model(False)
    session = SimpleNamespace(run=lambda _names, feeds: [model(feeds)])
    monkeypatch.setattr(runner, "open_session", lambda *asked: opened.append(asked) or session)
    config = {
        "input": [
            {"name": "input_ids", "dims": ["-1"]},
            {"name": "attention_mask", "dims": ["-1"]},
            {"name": "token_type_ids", "dims": ["-1"], "optional": True},
        ],
        "output": [{"name": "out", "dims": ["1"]}],
        "instance_group": [{"count": 2}],
        "parameters": {
            key: {"string_value": value}
            for key, value in {
                "vocab_size": "50",
                "max_length": "9",
                "type_vocab_size": "2",
                "threads": "3",
            }.items()
        },
    }
    served = runner.TritonPythonModel()
    told = {"model_config": json.dumps(config), "model_repository": str(tmp_path), "model_version": "4"}
    served.initialize(told | {"model_instance_kind": "GPU", "model_instance_device_id": "2"})
    served.initialize(told | {"model_instance_kind": "CPU", "model_instance_device_id": "0"})
    file = tmp_path / "4" / "model.onnx"
    assert opened == [(file, 3, 2), (file, 3, None)]

    def sent(ids, *, mask=True):
        tensors = request(ids)
        return {k: FakeTensor(k, v) for k, v in tensors.items() if mask or k == "input_ids"}

    good, missing, long = served.execute([sent([[5, 6]]), sent([[5]], mask=False), sent([[1] * 10])])
    assert (good.outputs[0].name, good.outputs[0].array.tolist(), good.error) == ("out", [[11.0]], None)
    assert missing.error == "the input attention_mask is missing"
    assert long.error == "length 10 is beyond the model's maximum of 9"
    assert model.calls[0]["token_type_ids"].tolist() == [[0, 0]]


@pytest.fixture
def onnxruntime_gpu(monkeypatch):
    """What onnxruntime-gpu does with CUDA (`loads`) and without a library of it: then the CPU runs the session."""

    def install(*, loads):
        asked = []

        def session(path, options, providers):
            names = [one if isinstance(one, str) else one[0] for one in providers]
            asked.append(providers)
            kept = names if loads else []
            return SimpleNamespace(get_providers=lambda: [*kept, "CPUExecutionProvider"])

        fake = SimpleNamespace(
            __version__="1.0",
            SessionOptions=lambda: SimpleNamespace(add_session_config_entry=lambda *_: None),
            get_available_providers=lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"],
            preload_dlls=lambda: asked.append("libraries"),
            InferenceSession=session,
        )
        monkeypatch.setitem(sys.modules, "onnxruntime", fake)
        return asked

    return install


def test_an_instance_on_a_gpu_runs_there(onnxruntime_gpu, tmp_path):
    asked = onnxruntime_gpu(loads=True)
    runner.open_session(tmp_path, 1, 2)
    runner.open_session(tmp_path, 1)
    assert asked == [
        "libraries", [("CUDAExecutionProvider", {"device_id": "2", "use_tf32": "0"})], ["CPUExecutionProvider"],
    ]  # fmt: skip


def test_an_instance_on_a_gpu_never_runs_on_the_cpu(onnxruntime_gpu, tmp_path, monkeypatch):
    """onnxruntime itself would, and say so in its log alone."""
    onnxruntime_gpu(loads=False)
    with pytest.raises(
        RuntimeError, match=r"this instance is for GPU 0, and onnxruntime 1.0 .* has no CUDA that loads"
    ):
        runner.open_session(tmp_path, 1, 0)
    monkeypatch.undo()
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(
        RuntimeError, match="install onnxruntime-gpu and its libraries there, or serve on the CPU"
    ):
        runner.open_session(tmp_path, 1, 0)
