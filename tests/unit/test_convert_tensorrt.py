"""One builder for every TensorRT: really built with TensorRT for RTX, and scripted where a GPU is needed."""

import functools
import gc
import sys
from types import SimpleNamespace

import onnx
import pytest
from onnx import TensorProto, helper

from loadgen.convert import flavours, tensorrt
from loadgen.convert.config import FullTensor, show
from loadgen.convert.options import ConvertOptions
from loadgen.convert.profiles import Ranges, Span, ranges
from loadgen.convert.publish import publish, staged
from loadgen.convert.same_server import require_loadable, require_same_gpu
from loadgen.convert.serve_options import Flavour, PlanOptions, ServeOptions
from loadgen.convert.tensorrt import BuildOptions, TensorRT, TensorRTError, build, find_tensorrt, read_engine
from loadgen.convert.tensorrt_log import Log
from loadgen.convert.warmup import Fill
from loadgen.environment.cuda import Device
from loadgen.triton.repository import read_repository
from tests.support import fake_tensorrt as fake

H200 = Device("NVIDIA H200", "9.0", 2**37, "13.0")
X4 = (Ranges({"x": ((1, 4), (2, 4), (8, 4))}),)


def onnx_file(path, nodes, inputs, outputs):
    values = [[helper.make_tensor_value_info(*tensor) for tensor in side] for side in (inputs, outputs)]
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ours", 1)]
    onnx.save(
        helper.make_model(helper.make_graph(nodes, "g", *values), opset_imports=opsets, ir_version=10), path
    )
    return path


def relu(path):
    node = helper.make_node("Relu", ["x"], ["y"], name="r")
    x, y = ("x", TensorProto.FLOAT, ["batch", 4]), ("y", TensorProto.FLOAT, ["batch", 4])
    return onnx_file(path, [node], [x], [y])


@pytest.fixture(scope="module")
def rtx():
    return find_tensorrt("tensorrt_rtx")


def test_every_type_is_read_back_from_what_was_really_built(rtx, tmp_path):
    half, whole = TensorProto.FLOAT16, TensorProto.INT32
    nodes = [
        helper.make_node("Relu", ["in 1/a:0"], ["y"]),
        helper.make_node("Greater", ["in 1/a:0", "y"], ["above"]),
        helper.make_node("ArgMax", ["y"], ["best"], axis=1),
        helper.make_node("Identity", ["count"], ["same"]),
    ]
    outputs = [("y", half, ["b", 4]), ("above", TensorProto.BOOL, ["b", 4]), ("best", TensorProto.INT64, ["b", 1]),
               ("same", whole, ["b"])]  # fmt: skip
    file = onnx_file(
        tmp_path / "m.onnx", nodes, [("in 1/a:0", half, ["b", 4]), ("count", whole, ["b"])], outputs
    )
    shapes = Ranges({"in 1/a:0": ((1, 4), (2, 4), (8, 4)), "count": ((1,), (2,), (8,))})
    built = build(rtx, file, tmp_path / "m.plan", BuildOptions((shapes,), target="8.9"))
    assert built.facts.inputs == (
        FullTensor("in 1/a:0", "FP16", (-1, 4)),
        FullTensor("count", "INT32", (-1,)),
    )
    assert [(t.name, t.datatype, t.axes) for t in built.facts.outputs] == [
        ("y", "FP16", (-1, 4)), ("above", "BOOL", (-1, 4)), ("best", "INT64", (-1, 1)), ("same", "INT32", (-1,)),
    ]  # fmt: skip
    assert (built.facts.read_from, built.facts.profiles_from) == ("builder", "plan")
    assert built.facts.profiles == (shapes,)
    assert (built.kind, built.compute, built.timing_cache) == ("tensorrt_rtx", "8.9", "none")
    assert built.plan_bytes == (tmp_path / "m.plan").stat().st_size > 10_000
    assert any("best has Int64 binding" in line for line in built.warnings)


def test_the_engines_types_are_the_engines_not_the_files(rtx, tmp_path):
    """FP64 in ONNX is FP32 in the engine: a configuration written from the file would not load."""
    node = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.DOUBLE)
    file = onnx_file(
        tmp_path / "m.onnx",
        [node],
        [("x", TensorProto.FLOAT, ["b", 4])],
        [("y", TensorProto.DOUBLE, ["b", 4])],
    )
    built = build(rtx, file, tmp_path / "m.plan", BuildOptions(X4, target="8.9"))
    assert built.facts.outputs == (FullTensor("y", "FP32", (-1, 4)),)
    shown = show(built.facts.inputs, built.facts.outputs, 8)
    assert (shown.max_batch, shown.outputs[0].datatype, shown.outputs[0].shape) == (8, "FP32", (4,))


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ([helper.make_node("Frob", ["x"], ["y"], name="frob_1", domain="ours")],
         "TensorRT cannot read m.onnx: node 'frob_1' (Frob): creator && \"Plugin not found"),
        ([helper.make_node("Cast", ["x"], ["c"], to=TensorProto.FLOAT16), helper.make_node("Add", ["c", "x"], ["y"], name="a")],
         ("TensorRT cannot read m.onnx: node 'a' (Add): Invalid Node - a ITensor::getDimensions: Error Code 4: API Usage Error "
         "(a: ElementWiseOperation SUM must have same input types. But they are of types Half and Float.")),
    ],
)  # fmt: skip
def test_the_parsers_own_line_is_told(rtx, tmp_path, nodes, said):
    x, y = ("x", TensorProto.FLOAT, ["b", 4]), ("y", TensorProto.FLOAT, ["b", 4])
    file = onnx_file(tmp_path / "m.onnx", nodes, [x], [y])
    with pytest.raises(TensorRTError) as why:
        build(rtx, file, tmp_path / "m.plan", BuildOptions(X4, target="8.9"))
    assert str(why.value).startswith(said)
    assert "\n" not in str(why.value)
    assert "cudaError" not in str(why.value)
    assert not (tmp_path / "m.plan").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (BuildOptions((Ranges({"x": ((1, 5), (2, 5), (4, 5))}),), target="8.9"), "Dimension mismatch for tensor x and profile 0"),
        (BuildOptions((Ranges({"x": ((1,), (2,), (4,))}),), target="8.9"), "tensor x has 2 dimensions but profile 0 has 1"),
        (BuildOptions((Ranges({"z": ((1,), (2,), (4,))}),), target="8.9"), "no shapes for the input 'x'"),
        (BuildOptions((), target="8.9"), "no optimization profile"),
        (BuildOptions(X4, target="9.0"), "does not build for compute capability 9.0; allowed: "),
        (BuildOptions(X4), "no GPU here to build for; say which"),
    ],
)  # fmt: skip
def test_the_builders_own_line_is_told(rtx, tmp_path, monkeypatch, options, said):
    monkeypatch.setattr(tensorrt, "cuda_device", lambda: None)
    with pytest.raises(TensorRTError, match=said):
        build(rtx, relu(tmp_path / "m.onnx"), tmp_path / "m.plan", options)
    assert not (tmp_path / "m.plan").exists()


def test_a_file_that_is_no_model(rtx, tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"hello")
    with pytest.raises(TensorRTError, match=r"m.onnx is no ONNX model: there is no output in it"):
        build(rtx, tmp_path / "m.onnx", tmp_path / "m.plan", BuildOptions(X4, target="8.9"))


def test_an_engine_for_batches_of_64_to_300(rtx, tmp_path):
    """Field case 30, really built: max_batch_size is the profile's largest, and its smallest is warned of."""
    shapes = ranges([FullTensor("x", "FP32", ("b", 4))], Span(64, 128, 300), [Span(1, 1, 1)])
    built = build(rtx, relu(tmp_path / "m.onnx"), tmp_path / "m.plan", BuildOptions(shapes, target="8.9"))
    largest, warnings = tensorrt_batch(built)
    assert largest == 300
    assert "smallest batch is 64" in warnings[0]


def tensorrt_batch(built):
    return flavours.served_batch(built.facts.profiles)


def test_an_engine_for_another_gpu_than_this_machines_is_not_loaded_here(rtx, gpu, tmp_path):
    """It would be refused, and is right where it is going: it is read as on a machine without a GPU."""
    built = build(rtx, relu(tmp_path / "m.onnx"), tmp_path / "m.plan", BuildOptions(X4, target="8.9"))
    assert (built.compute, built.facts.read_from, built.facts.profiles_from) == ("8.9", "builder", "plan")
    assert built.facts.profiles == X4


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(tensorrt, "cuda_device", lambda: H200)


def built_with(version, tmp_path, options=None, **script):
    made = fake.module(version, **script)
    options = options or BuildOptions(X4)
    return made, build(TensorRT(made, "tensorrt", version), tmp_path / "m.onnx", tmp_path / "m.plan", options)


@pytest.mark.parametrize(
    ("version", "flags"), [("10.12.0.36", 2), ("10.16.1", 2), ("11.0.0.100", 0), ("11.4.0.106", 0)]
)
def test_one_way_for_every_version(gpu, tmp_path, version, flags):
    """10.x is told to be strongly typed; 11.x is nothing else and has no such flag."""
    made, built = built_with(version, tmp_path)
    assert ("network", flags) in made.calls
    assert (tmp_path / "m.plan").read_bytes() == b"a plan"
    assert (built.version, built.compute, built.gpu) == (version, "9.0", "NVIDIA H200")
    assert built.facts.read_from == "engine"
    assert built.facts.profiles == X4
    assert built.warnings == ("a warning of the builder",)


def test_what_is_asked_of_the_builder(gpu, tmp_path):
    """fp32 means FP32: TF32 only when it is asked for."""
    options = BuildOptions(X4, workspace_bytes=2**20, version_compatible=True)
    made, _ = built_with("10.13.2.6", tmp_path, options)
    assert [call for call in made.calls if call[0] != "network"] == [
        ("workspace", 2**20), ("clear", "tf32"), ("set", "compatible"),
    ]  # fmt: skip
    made, _ = built_with("10.13.2.6", tmp_path, BuildOptions(X4, tf32=True))
    assert ("clear", "tf32") not in made.calls


def test_the_timing_cache_is_one_of_this_version_and_gpu(gpu, tmp_path):
    options = BuildOptions(X4, cache=tmp_path / "cache")
    made, built = built_with("10.13.2.6", tmp_path, options)
    assert (built.timing_cache, ("cache", b"") in made.calls) == ("new", True)
    assert [f.name for f in (tmp_path / "cache").iterdir()] == ["10.13.2.6-NVIDIA_H200-9.0-cuda13.0.timing"]
    made, built = built_with("10.13.2.6", tmp_path, options)
    assert (built.timing_cache, ("cache", b"timings") in made.calls) == ("used", True)
    assert built_with("10.13.3.1", tmp_path, options)[1].timing_cache == "new"


def test_a_damaged_timing_cache_is_made_anew(gpu, tmp_path, monkeypatch):
    """TensorRT makes nothing of it."""
    options = BuildOptions(X4, cache=tmp_path / "cache")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "10.13.2.6-NVIDIA_H200-9.0-cuda13.0.timing").write_bytes(fake.DAMAGED)
    assert built_with("10.13.2.6", tmp_path, options)[1].timing_cache == "new"
    assert built_with("10.13.2.6", tmp_path, options)[1].timing_cache == "used"


def test_an_engines_types_without_a_name_in_triton_are_refused(gpu, tmp_path):
    engine = {
        "x": (fake.TensorIOMode.INPUT, fake.DataType.FP8, (-1, 4)),
        "y": (fake.TensorIOMode.OUTPUT, fake.DataType.FLOAT, (-1, 4)),
    }
    with pytest.raises(TensorRTError, match="x is FP8, a type that Triton has no name for"):
        built_with("10.13.2.6", tmp_path, engine=engine)


def test_a_plan_of_another_version_is_refused_in_tensorrts_words(gpu, tmp_path):
    (tmp_path / "old.plan").write_bytes(b"another plan")
    found = TensorRT(fake.module("10.13.2.6"), "tensorrt", "10.13.2.6")
    with pytest.raises(
        TensorRTError, match=r"TensorRT 10.13.2.6 does not load old.plan: The engine plan file is not"
    ):
        read_engine(found, tmp_path / "old.plan")


def test_errors_of_the_builder_and_of_an_older_parser(gpu, tmp_path):
    with pytest.raises(TensorRTError, match=r"TensorRT 10.13.2.6 cannot build m.onnx: out of memory"):
        built_with("10.13.2.6", tmp_path, build_error="out of   memory")
    plain = SimpleNamespace(desc=lambda: "unsupported\ndata type")  # 10.12's errors may lack the node
    with pytest.raises(TensorRTError, match=r"TensorRT cannot read m.onnx: unsupported data type$"):
        built_with("10.13.2.6", tmp_path, parser_errors=[plain])


def test_full_tensorrt_needs_the_gpu_it_builds_for(monkeypatch, tmp_path):
    monkeypatch.setattr(tensorrt, "cuda_device", lambda: None)
    with pytest.raises(TensorRTError, match="builds on the GPU it is for, and there is none here"):
        built_with("10.13.2.6", tmp_path)
    monkeypatch.setattr(tensorrt, "cuda_device", lambda: H200)
    with pytest.raises(TensorRTError, match=r"that is here \(9.0\), not for compute capability 8.9"):
        built_with("10.13.2.6", tmp_path, BuildOptions(X4, target="8.9"))


def module_that_fails(monkeypatch, error):
    def imported(name):
        raise error(name)

    monkeypatch.setattr(tensorrt.importlib, "import_module", imported)


def test_a_tensorrt_that_is_missing_too_old_or_does_not_load(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorrt", fake.module("10.11.0"))
    with pytest.raises(TensorRTError, match=r"TensorRT 10.11.0 is too old; 10.12 or newer"):
        find_tensorrt()
    monkeypatch.setitem(sys.modules, "tensorrt", fake.module("10.12.0.36"))
    assert find_tensorrt().title == "TensorRT 10.12.0.36"
    module_that_fails(monkeypatch, lambda name: ModuleNotFoundError(f"No module named {name!r}", name=name))
    with pytest.raises(
        TensorRTError, match="TensorRT is not installed; the server's own comes with its image"
    ):
        find_tensorrt()
    module_that_fails(monkeypatch, lambda _: OSError("libcudart.so.13: cannot open\nshared object file"))
    with pytest.raises(
        TensorRTError, match=r"tensorrt does not load: libcudart.so.13: cannot open shared object file; "
    ):
        find_tensorrt()


@pytest.mark.parametrize(
    ("mine", "server", "compatible", "said"),
    [
        ("10.13.2.6", "10.13.2", False, None),
        ("10.13.2.6", "10.13.2.6+cuda13.0", False, None),
        ("10.13.2.6", "10.13.3", False, "the server has 10.13.3 and would not load them"),
        ("10.13.2.6", "11.0.0", False, "the server has 11.0.0"),
        ("10.13.2.6", "10.13", False, "three numbers are needed"),
        ("10.13.2.6", None, False, "which one does the server have"),
        ("10.13.2.6", "10.16.0", True, None),
        ("10.13.2.6", "10.12.0", True, "the server has 10.12.0"),
        ("10.13.2.6", "11.0.0", True, "the server has 11.0.0"),
    ],
)
def test_versions_are_compared(mine, server, compatible, said):
    if said is None:
        require_loadable("tensorrt", mine, server, version_compatible=compatible)
        return
    with pytest.raises(TensorRTError, match=said):
        require_loadable("tensorrt", mine, server, version_compatible=compatible)


def test_engines_for_another_gpu_and_of_rtx_are_refused(gpu, tmp_path):
    _, built = built_with("10.13.2.6", tmp_path)
    require_same_gpu(built, "9.0")
    with pytest.raises(
        TensorRTError, match=r"for compute capability 9.0 \(NVIDIA H200\), the server's GPU has 8.9"
    ):
        require_same_gpu(built, "8.9")
    with pytest.raises(
        TensorRTError, match=r"TensorRT for RTX 1.7.1, and Triton's tensorrt_plan does not load those"
    ):
        require_loadable("tensorrt_rtx", "1.7.1", "1.7.1")


def test_the_flavour_is_refused_before_anything_slow(monkeypatch):
    monkeypatch.setattr(flavours, "server_tensorrt", lambda: None)
    options = ConvertOptions(name="m", serve=ServeOptions(flavour=Flavour.TENSORRT))
    with pytest.raises(TensorRTError, match="convert where the server's own TensorRT is installed"):
        flavours.require_flavour(options)
    monkeypatch.setitem(sys.modules, "tensorrt", fake.module("10.13.2.6"))
    with pytest.raises(TensorRTError, match=r"give --server-tensorrt, e.g. 10.13.2.6"):
        flavours.require_flavour(options)
    flavours.require_flavour(
        ConvertOptions(
            name="m",
            serve=ServeOptions(flavour=Flavour.TENSORRT, plan=PlanOptions(server_tensorrt="10.13.2")),
        )
    )


def test_a_plan_takes_the_place_of_the_onnx_file_and_its_configuration_is_the_engines(
    gpu, tmp_path, monkeypatch
):
    """Field case 30: the configuration's largest batch is the profile's; a smallest above 1 is warned of."""
    engine = {
        "x": (
            fake.TensorIOMode.INPUT,
            fake.DataType.INT32,
            (-1, -1),
        ),  # INT64 in the file: as older ones cast it
        "y": (fake.TensorIOMode.OUTPUT, fake.DataType.HALF, (-1, 6)),
    }
    monkeypatch.setitem(sys.modules, "tensorrt", fake.module("10.13.2.6", engine=engine))
    monkeypatch.setattr(flavours, "home", lambda: tmp_path / "home" / "triton")
    asked = PlanOptions(batch="64:128:300", server_tensorrt="10.13.2", server_compute="9.0")
    options = ConvertOptions(
        name="m", repository=tmp_path / "repository", max_batch=256,
        serve=ServeOptions(flavour=Flavour.TENSORRT, warmup=((64, 32),), plan=asked),
    )  # fmt: skip
    model = flavours.Exported(
        inputs=(FullTensor("x", "INT64", ("batch", "length")),),
        outputs=(FullTensor("y", "FP32", ("batch", 6)),),
        max_length=128,
        parameters={"vocab_size": "100"},
        fills={"x": Fill(0, 99)},
    )
    said = []
    with staged(options) as stage:
        (stage.version / "model.onnx").write_bytes(b"onnx")
        (stage.version / "model.onnx.data").write_bytes(b"weights")
        laid = flavours.lay_out(stage, model, options, said.append)
        publish(stage, options)
    assert sorted(f.name for f in options.version_folder.iterdir()) == ["model.plan"]
    [stored] = read_repository(options.repository)
    config = stored.config
    assert stored.findings == ()
    assert (config.platform, config.max_batch_size, config.dynamic_batching is None) == (
        "tensorrt_plan",
        300,
        False,
    )
    assert [(t.name, str(t.data_type), t.dims) for t in (*config.input, *config.output)] == [
        ("x", "TYPE_INT32", (-1,)), ("y", "TYPE_FP16", (6,)),
    ]  # fmt: skip
    assert (options.model_folder / "warmup" / "1-0-x-32").stat().st_size == 32 * 4
    assert laid.warnings[0].startswith("the engine's smallest batch is 64")
    assert laid.recorded["tensorrt"]["profiles"] == [{"x": [[64, 1], [128, 128], [300, 128]]}]
    assert said == ["building with TensorRT 10.13.2.6, 1 optimization profiles"]


def test_nothing_is_collected_while_tensorrt_logs(rtx, tmp_path, monkeypatch):
    """It logs under a lock of its own: a collection there that frees another of its objects hangs for ever."""
    collects = []

    class Lines(list):
        def append(self, line):
            collects.append(gc.isenabled())
            super().append(line)

    monkeypatch.setattr(tensorrt, "Log", functools.partial(Log, errors=Lines()))
    shapes = (Ranges({"x": ((1,), (2,), (4,))}),)
    with pytest.raises(TensorRTError):
        build(rtx, relu(tmp_path / "m.onnx"), tmp_path / "m.plan", BuildOptions(shapes, target="8.9"))
    assert set(collects) == {False}
    assert gc.isenabled()
