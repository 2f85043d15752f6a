"""Small configurations and whether a server loads them: `check` has to say the same as the real Triton.

Each case is a name, its text for the python backend, and what is expected of `check`: the field of a refusal, "" when
it loads.  The identity model that they configure is MODEL.
"""

MODEL = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(r, "x").as_numpy() for r in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", x)]) for x in inputs]
"""


def _model(x="dims: [ -1 ]", rest="", *, batch=8, kind="TYPE_FP32", group="kind: KIND_CPU"):
    return (
        f'backend: "python" max_batch_size: {batch}\n'
        f'input {{ name: "x" data_type: {kind} {x} }} output {{ name: "y" data_type: {kind} dims: [ -1 ] }}\n'
        f"instance_group {{ {group} }}\n{rest}\n"
    )


def _warm(x, *, name="x", batch="batch_size: 1"):
    return f'model_warmup {{ name: "w" {batch} inputs {{ key: "{name}" value {{ {x} }} }} }}'


def _accelerator(side, name):
    return f'optimization {{ execution_accelerators {{ {side}_execution_accelerator: [ {{ name: "{name}" }} ] }} }}'


def _ensemble(step, rest=""):
    return (
        'platform: "ensemble" max_batch_size: 8\n'
        'input { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } output { name: "y" data_type: TYPE_FP32 dims: [ -1 ] }\n'
        f"ensemble_scheduling {{ step {{ {step} }} }} {rest}"
    )


_FLOATS = "data_type: TYPE_FP32 dims: [ 4 ]"
_MAPS = 'input_map { key: "x" value: "x" } output_map { key: "y" value: "y" }'
_POLICY = "default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 9 }"

CASES = {
    "plain": (_model(), ""),
    "batching": (_model(rest="dynamic_batching { }"), ""),
    "batching-of-nothing": (_model(rest="dynamic_batching { }", batch=0), ""),
    "preferred-too-large": (
        _model(rest="dynamic_batching { preferred_batch_size: [ 16 ] }"), "dynamic_batching.preferred_batch_size",
    ),
    "no-default-level": (
        _model(rest="dynamic_batching { priority_levels: 2 }"), "dynamic_batching.default_priority_level",
    ),
    "level-of-policy": (
        _model(rest="dynamic_batching { priority_levels: 2 default_priority_level: 1 "
               "priority_queue_policy { key: 5 value { max_queue_size: 1 } } }"),
        "dynamic_batching.priority_queue_policy",
    ),
    "order-and-levels": (
        _model(rest="dynamic_batching { preserve_ordering: true priority_levels: 2 default_priority_level: 1 }"),
        "dynamic_batching.preserve_ordering",
    ),
    "order-and-one-level": (
        _model(rest="dynamic_batching { preserve_ordering: true priority_levels: 1 default_priority_level: 1 }"), "",
    ),
    "order-and-delay": (
        _model(rest=f"dynamic_batching {{ preserve_ordering: true {_POLICY} }}"), "dynamic_batching.preserve_ordering",
    ),
    "wrong-name": ('name: "other" ' + _model(), "name"),
    "dims-zero": (_model("dims: [ 0 ]"), "input 'x'"),
    "dims-none": (_model(""), "input 'x'"),
    "reshape-scalar": (_model("dims: [ 1 ] reshape { shape: [ ] }"), ""),
    "reshape-scalar-alone": (_model("dims: [ 1 ] reshape { shape: [ ] }", batch=0), "input 'x'"),
    "reshape-size": (_model("dims: [ 4 ] reshape { shape: [ 3 ] }"), "input 'x'"),
    "reshape-free": (_model("dims: [ -1, 2 ] reshape { shape: [ -1, 3 ] }"), "input 'x'"),
    "reshape-same": (_model("dims: [ -1, 4 ] reshape { shape: [ -1, 2, 2 ] }"), ""),
    "cpu-on-gpu": (_model(group="kind: KIND_CPU gpus: [ 0 ]"), "instance_group[0]"),
    "cpu-profile": (_model(group='kind: KIND_CPU profile: "1"'), "instance_group[0]"),
    "gpu-accelerator-on-cpu": (_model(rest=_accelerator("gpu", "tensorrt")), ""),
    "cpu-accelerator-on-cpu": (_model(rest=_accelerator("cpu", "openvino")), ""),
    "warm": (_model(rest=_warm(f"{_FLOATS} zero_data: true", batch="batch_size: 8 count: 2")), ""),
    "warm-too-large": (_model(rest=_warm(f"{_FLOATS} zero_data: true", batch="batch_size: 9")), "model_warmup 'w'"),
    "warm-skipped": (_model(rest=_warm(f"{_FLOATS} zero_data: true", batch="")), ""),
    "warm-free": (_model(rest=_warm("data_type: TYPE_FP32 dims: [ -1 ] zero_data: true")), "model_warmup 'w'"),
    "warm-nothing": (_model(rest=_warm(_FLOATS)), "model_warmup 'w'"),
    "warm-missing": (_model(rest='model_warmup { name: "w" batch_size: 1 }'), "model_warmup 'w'"),
    "warm-type": (_model(rest=_warm("data_type: TYPE_INT64 dims: [ 4 ] zero_data: true")), "model_warmup 'w'"),
    "warm-file": (_model(rest=_warm(f'{_FLOATS} input_data_file: "nothere"')), "model_warmup 'w'"),
    "warm-random": (
        _model(rest=_warm("data_type: TYPE_INT64 dims: [ 4 ] random_data: true"), kind="TYPE_INT64"), "",
    ),
    "platform": ('platform: "tensorrt" ' + _model().replace('backend: "python"', ""), "platform"),
    "versions-none": (_model(rest="version_policy { latest { } }"), "version_policy.latest"),
    "versions-missing": (_model(rest="version_policy { specific { versions: [ 3 ] } }"), "version_policy"),
    "versions-some": (_model(rest="version_policy { specific { versions: [ 1, 3 ] } }"), ""),
    "decoupled-cache": (
        _model(rest="model_transaction_policy { decoupled: true } response_cache { enable: true }"), "response_cache",
    ),
    "schedulers": (_model(rest="dynamic_batching { } sequence_batching { }"), "config.pbtxt"),
    "steps": (_ensemble(f'model_name: "plain" model_version: -1 {_MAPS}'), ""),
    "steps-nobody": (
        _ensemble(f'model_name: "nobody" model_version: -1 {_MAPS}'), "ensemble_scheduling.step[0]",
    ),
    "steps-version": (_ensemble(f'model_name: "plain" model_version: 4 {_MAPS}'), "ensemble_scheduling.step[0]"),
    "steps-map": (
        _ensemble(f'model_name: "plain" model_version: -1 {_MAPS.replace("x", "q", 1)}'), "ensemble_scheduling.step[0]",
    ),
    "steps-instances": (
        _ensemble(f'model_name: "plain" model_version: -1 {_MAPS}', "instance_group { count: 1 }"), "instance_group",
    ),
}  # fmt: skip


def write_repository(folder):
    """Each case as a model folder with version 1."""
    for name, (text, _) in CASES.items():
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(text)
        if "ensemble" not in text:
            (folder / name / "1" / "model.py").write_text(MODEL)
    return folder
