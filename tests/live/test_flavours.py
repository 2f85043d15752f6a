"""A TensorRT engine really built from MiniLM, and a model served as its options ask, by the real Triton."""

import json
import urllib.request
from dataclasses import replace

import pytest

from loadgen.convert.config import FullTensor, Serving, render, show
from loadgen.convert.convert import convert
from loadgen.convert.encoder import load_encoder
from loadgen.convert.export import export_onnx
from loadgen.convert.flavours import Exported, profiles_of, served_batch
from loadgen.convert.options import ConvertOptions
from loadgen.convert.serve_options import Flavour, PlanOptions, Queue, ServeOptions
from loadgen.convert.sources import find_source
from loadgen.convert.tensorrt import BuildOptions, build, find_tensorrt
from loadgen.records import LoadgenError
from loadgen.triton.config import ModelConfig, QueuePolicy
from loadgen.triton.config_enums import TimeoutAction
from loadgen.triton.install import BACKENDS, ensure_installed
from loadgen.triton.local import LocalTriton
from loadgen.triton.pbtxt import parse
from loadgen.triton.repository import read_repository
from tests.support.encoder import write_encoder

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def test_an_engine_of_minilm_is_built_and_read_back(tmp_path):
    """With TensorRT for RTX, on a machine without a GPU: its inputs, types and profiles are what is served."""
    encoder = load_encoder(find_source("minilm"), None)
    facts = export_onnx(encoder, tmp_path / "model.onnx")
    tensors = [FullTensor(t.name, t.datatype, t.axes) for t in (*facts.inputs, facts.output)]
    model = Exported(tuple(tensors[:-1]), (tensors[-1],), encoder.max_length)
    traffic = tmp_path / "mix.yaml"
    traffic.write_text(
        "kinds:\n  short: {model: m, length: 20, weight: 3}\n  long: {model: m, length: 100}\n"
        "phases:\n  - {name: a, open: {rate: [{duration: 4s, at: 100/s}]}}\n"
    )
    profiles = profiles_of(model, 8, PlanOptions(traffic=str(traffic), buckets=2))
    built = build(
        find_tensorrt("tensorrt_rtx"), tmp_path / "model.onnx", tmp_path / "model.plan",
        BuildOptions(profiles, target="8.9"),
    )  # fmt: skip
    assert sorted((t.name, t.datatype, t.axes) for t in built.facts.inputs) == sorted(
        (name, "INT64", (-1, -1)) for name in INPUTS
    )
    assert [(t.name, t.datatype, t.axes) for t in built.facts.outputs] == [
        ("sentence_embedding", "FP32", (-1, 384))
    ]
    longest = encoder.max_length
    assert built.facts.profiles_from == "plan"  # its bytes, not the request
    assert [dict(p.shapes) for p in built.facts.profiles] == [
        dict.fromkeys(INPUTS, ((1, 1), (8, 20), (8, 24))),
        dict.fromkeys(INPUTS, ((1, 25), (8, 100), (8, longest))),
    ]
    assert built.plan_bytes > 80_000_000
    largest, warnings = served_batch(built.facts.profiles)
    shown = show(built.facts.inputs, built.facts.outputs, largest)
    config = parse(
        render(
            Serving(
                "minilm", shown.inputs, shown.outputs, shown.max_batch, 0, 1, ragged=False, parameters={},
                options=ServeOptions(flavour=Flavour.TENSORRT), plan_profiles=2,
            )
        )
    )  # fmt: skip
    assert (config.platform, config.max_batch_size, warnings) == ("tensorrt_plan", 8, [])
    assert {(t.name, str(t.data_type), t.dims) for t in config.input} == {
        (n, "TYPE_INT64", (-1,)) for n in INPUTS
    }
    assert config.instance_group[0].profile == ("0", "1")


def ask(url, path):
    with urllib.request.urlopen(f"{url}/v2/models/{path}", timeout=30) as answer:
        return json.load(answer)


def test_the_server_warms_up_and_batches_as_asked(tmp_path):
    source = str(write_encoder(tmp_path / "source"))
    repository = tmp_path / "repository"
    serve = ServeOptions(
        preferred=(2, 4), priority_levels=3, queue=Queue(500_000, most=50),
        level_queues=((3, Queue(900_000, delays=True, most=9)),), versions="all",
        warmup=((1, 5), (4, 40)),
    )  # fmt: skip
    options = ConvertOptions(
        name="m", repository=repository, max_batch=4, max_length=48, threads=1, serve=serve
    )
    convert(source, options)
    convert(source, replace(options, version=2, serve=replace(serve, warmup=((2, 17),))))
    convert(source, replace(options, name="onnx", serve=ServeOptions(flavour=Flavour.ONNX)))
    assert [m.findings for m in read_repository(repository)] == [(), ()]
    assert sorted(f.name for f in (repository / "onnx" / "1").iterdir() if f.suffix != ".json") == [
        "model.onnx"
    ]
    assert sorted(f.name for f in ensure_installed(print).backends.iterdir()) == list(BACKENDS)
    record = json.loads((repository / "onnx" / "1" / "convert.json").read_text())
    assert record["serving"]["warnings"][0].startswith(
        "onnxruntime_onnx needs a Triton with the onnxruntime backend"
    )
    with pytest.raises(LoadgenError, match=r"onnx.*could not be loaded: .*onnxruntime"):
        LocalTriton(repository, models=["onnx"]).start()
    with LocalTriton(repository, models=["m"]) as server:
        told = ModelConfig.from_json(ask(server.http_target, "m/config"))
        stats = ask(server.http_target, "m/stats")["model_stats"]
    batching = told.dynamic_batching
    assert (batching.preferred_batch_size, batching.priority_levels, batching.default_priority_level) == (
        (2, 4),
        3,
        2,
    )
    assert batching.default_queue_policy == QueuePolicy(TimeoutAction.REJECT, 500_000, max_queue_size=50)
    assert batching.priority_queue_policy == {3: QueuePolicy(TimeoutAction.DELAY, 900_000, max_queue_size=9)}
    assert [w.batch_size for w in told.model_warmup] == [2]
    assert {s["version"]: s["inference_count"] for s in stats} == {
        "1": 2,
        "2": 2,
    }  # both versions, warmed alike
    assert {s["version"]: [b["batch_size"] for b in s["batch_stats"]] for s in stats} == {"1": [2], "2": [2]}
    assert min(f.name.split("-")[0] for f in (repository / "m" / "warmup").iterdir()) == "1"
