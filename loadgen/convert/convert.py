"""One conversion from source to published model, and whether it is needed at all.

The order is the point: nothing reaches the repository before parity has passed.  It must not know how a
repository is served.
"""

import json
import platform
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

from loadgen.convert import publish
from loadgen.convert.calibration import require_rows
from loadgen.convert.config import FullTensor
from loadgen.convert.encoder import Encoder, contained, load_encoder, require_libraries
from loadgen.convert.export import EXPORTERS, OnnxFacts, OnnxTensor, export_any
from loadgen.convert.flavours import ONNX, RUNNER, Exported, lay_out, require_flavour
from loadgen.convert.lowering import ROUNDED, climb_last, climb_onnx, lower_onnx
from loadgen.convert.options import ConvertOptions
from loadgen.convert.parity import LARGEST, ParityPoint, measure, onnx_run, points, require, verdict
from loadgen.convert.sidecar import SIDECAR
from loadgen.convert.sources import TOKENIZER, Source, find_source, numbers, sha256
from loadgen.convert.warmup import Fill, require_lengths
from loadgen.environment.facts import available_memory, machine, quick
from loadgen.triton.install import check as check_triton
from loadgen.units import finite_only, show_bytes

FORMAT = 1
# What a conversion holds beside the loaded weights, in their own size: measured with 2.3 GiB of them.
_MORE_EXPORTED, _MORE_GIVEN, _MORE_LOWERED = 1, 3, 4
_LIBRARIES = ("torch", "transformers", "onnx", "onnxscript", "onnxruntime", "loadgen")

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ConvertResult:
    """What was published.  `files` are bytes by path relative to the model's folder."""

    name: str
    version: int
    folder: Path
    files: Mapping[str, int]
    parity: tuple[ParityPoint, ...]
    sidecar: Mapping[str, Any]


def _silent(_step: str) -> None:
    pass


def convert(
    source: str,
    options: ConvertOptions,
    progress: Progress = _silent,
    moving: Callable[[], None] = lambda: None,
) -> ConvertResult:
    """Converts `source` (anything find_source knows) and publishes it as `options.name`.

    `progress` is told each step as it begins, and `moving` when there is no way back: what is published from there on
    is published whole, and an interrupt waits for that.  Raises a LoadgenError of one line: no such model, libraries
    missing, an export or a parity that failed, a repository that cannot be written; then nothing is published.
    """
    found = find_source(source, options.source)
    _require(options)
    _tell(progress, found.notes)
    size = sum(file.stat().st_size for file in found.weights)
    with contained(found.label), publish.staged(options, need_bytes=size + size // 4) as stage:
        progress(f"loading {found.label} from {found.origin}")
        encoder = load_encoder(found, options.max_length)
        if encoder.has_length:
            require_lengths(options.serve.warmup, encoder.max_length)
        given = encoder.exporter == "file"
        _tell(progress, _beginning(found, encoder, options.precision, given=given))
        onnx = stage.version / ONNX
        exported = onnx if options.precision == "fp32" else stage.work() / ONNX
        encoder, facts = export_any(encoder, exported, constants=numbers(found.config))
        _tell(progress, encoder.notes)
        progress(f"comparing ONNX with {'its source' if given else 'PyTorch'}")
        parity = measure(
            encoder, onnx_run(exported), points(max(_max_batch(options, encoder), 1), encoder.max_length)
        )
        if not options.force:
            require(parity)
        lowered: dict[str, Any] = {}
        if options.precision != "fp32":
            done, no_cpu = lower_onnx(found, encoder, exported, onnx, options, progress)
            progress(f"comparing {options.precision} with {'its source' if given else 'PyTorch'}")
            climbed = climb_onnx(found, encoder, exported, onnx, options, no_cpu)
            lowered = {"lowering": done.as_json() | {"no_cpu": no_cpu}, "ladder": climbed.as_json()}
        weights = _digests(stage)  # before a plan takes their place
        laid = lay_out(stage, _exported(encoder, facts), options, progress)
        if (tokenizer := found.folder / TOKENIZER).is_file():
            (stage.version / TOKENIZER).write_bytes(tokenizer.read_bytes())
        sidecar = _sidecar(found, options, encoder, facts, parity, stage, weights) | lowered | laid.recorded
        climbed_last, warnings = climb_last(found, encoder, stage, options, progress)
        sidecar |= climbed_last
        sidecar["serving"]["warnings"] += [*warnings, *_run_nowhere(sidecar, options)]
        _tell(progress, _forced(sidecar, parity))
        progress(f"publishing {options.version_folder}")
        sidecar = finite_only(sidecar)
        (stage.version / SIDECAR).write_text(
            json.dumps(sidecar, indent=2, allow_nan=False) + "\n", encoding="utf-8"
        )
        files = {
            file.relative_to(stage.model).as_posix(): file.stat().st_size
            for file in sorted(stage.model.rglob("*"))
            if file.is_file()
        }
        publish.publish(stage, options, moving)
    return ConvertResult(options.name, options.version, options.version_folder, files, tuple(parity), sidecar)


def _tell(progress: Progress, lines: Iterable[str]) -> None:
    for line in lines:
        progress(line)


def _beginning(found: Source, encoder: Encoder, precision: str, *, given: bool) -> list[str]:
    """What begins, after a warning where the kernel may end it: what takes more memory than there is gets no word."""
    module, there = encoder.module, available_memory()
    weights = sum(p.numel() * p.element_size() for p in module.parameters()) or sum(
        file.stat().st_size for file in found.weights
    )
    more = weights * (_MORE_LOWERED if precision != "fp32" else _MORE_GIVEN if given else _MORE_EXPORTED)
    begins = "taking the ONNX file as it is" if given else "exporting to ONNX with free batch and length"
    if there is None or more <= there:
        return [begins]
    needs = (
        f"{show_bytes(weights)} of weights may take {show_bytes(more)} more memory on the way to {precision}"
    )
    return [f"WARNING: {needs}, and {show_bytes(there)} are available", begins]


def _require(options: ConvertOptions) -> None:
    """What can be refused before anything is loaded.  Raises a LoadgenError."""
    publish.refuse_existing(options)
    require_libraries()
    if options.calibration is not None:
        require_rows(options.calibration)
    require_flavour(options)
    if options.check_served:
        check_triton()


def _run_nowhere(sidecar: Mapping[str, Any], options: ConvertOptions) -> list[str]:
    """Of a precision that neither the CPU nor a GPU here has run, nor an engine or a server after it."""
    rungs = {
        step["rung"]
        for key in ("ladder", "engine", "served")
        for step in sidecar.get(key, {}).get("steps", ())
    }
    if not rungs or not all(rung.endswith(ROUNDED) for rung in rungs):
        return []
    return [f"{options.precision} was run nowhere: what passed is FP32 arithmetic on values rounded to it"]


def _forced(sidecar: Mapping[str, Any], parity: list[ParityPoint]) -> list[str]:
    """What failed and is published all the same, a line each."""
    failed = [verdict(parity)] + [
        f"parity of the {key} failed, first {sidecar[key]['faults'][0]}"
        for key in ("ladder", "served")
        if key in sidecar and not sidecar[key]["passed"]
    ]
    return [f"WARNING: {why}; published because of --force" for why in failed if why]


def is_current(repository: Path, name: str, options: ConvertOptions, source: str) -> bool:
    """Whether `repository` already holds, as `name`, what `convert` would publish; True makes it needless.

    The version is that of `options`.  Compares the source's hashes, the options, the runner and the published config.pbtxt.  Raises a
    LoadgenError if there is no such source.  Takes the time to hash the weights.
    """
    found = find_source(source, options.source)
    there = replace(options, name=name, repository=repository)
    config = there.model_folder / publish.CONFIG
    try:
        told = json.loads((there.version_folder / SIDECAR).read_text(encoding="utf-8"))
        return bool(
            told["format"] == FORMAT
            and told["options"] == options.recorded()
            and told["config_sha256"] == sha256(config)
            and told["runner_sha256"] == sha256(RUNNER)
            and all(
                (there.version_folder / file).stat().st_size == size
                for file, size in told["serving"]["files"].items()
            )
            and told["source"]["sha256"] == found.digests()
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _max_batch(options: ConvertOptions, encoder: Encoder) -> int:
    """What config.pbtxt says: 0 for a model whose shapes do not begin with a free batch."""
    return options.max_batch if encoder.batched else 0


def _exported(encoder: Encoder, facts: OnnxFacts) -> Exported:
    parameters = {}
    if encoder.vocab_size:
        parameters = {
            "vocab_size": str(encoder.vocab_size),
            "max_length": str(encoder.max_length),
            "pad_token_id": str(encoder.pad_token_id),
        }
    if "token_type_ids" in encoder.inputs and encoder.type_vocab_size:
        parameters["type_vocab_size"] = str(encoder.type_vocab_size)
    if encoder.given:  # the runner knows the axes of a text encoder by itself
        told = {"inputs": {one.name: one.axes for one in encoder.specs}, "per_token": encoder.per_token}
        parameters["axes"] = json.dumps(told, separators=(",", ":"))
    fills = {one.name: Fill(1, 1) if one.mask else Fill(int(one.low), int(one.high)) for one in encoder.specs}
    ordered = sorted(facts.inputs, key=lambda one: encoder.inputs.index(one.name))
    return Exported(
        inputs=tuple(_full(one) for one in ordered),
        outputs=(_full(facts.output),),
        max_length=encoder.max_length,
        batched=encoder.batched,
        padded=encoder.padded,
        optional=frozenset({"token_type_ids"} if encoder.type_vocab_size else ()),  # zeros: one sequence
        parameters=parameters,
        fills=fills,
    )


def _full(tensor: OnnxTensor) -> FullTensor:
    return FullTensor(tensor.name, tensor.datatype, tensor.axes)


def _digests(stage: publish.Stage) -> dict[str, Any]:
    """Of the ONNX file, and the second one that there is beyond 1.5 GB."""
    files = sorted(stage.version.glob(f"{ONNX}*"))
    return {f.name: {"bytes": f.stat().st_size, "sha256": sha256(f)} for f in files}


def _sidecar(
    found: Source,
    options: ConvertOptions,
    encoder: Encoder,
    facts: OnnxFacts,
    parity: list[ParityPoint],
    stage: publish.Stage,
    weights: Mapping[str, Any],
) -> dict[str, Any]:
    tensors = {
        side: [{"name": t.name, "datatype": t.datatype, "shape": list(t.axes)} for t in values]
        for side, values in (("inputs", facts.inputs), ("outputs", (facts.output,)))
    }
    return {
        "format": FORMAT,
        "name": options.name,
        "version": options.version,
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "source": {"label": found.label, "origin": found.origin, "sha256": found.digests()},
        "model": {
            "model_type": found.config["model_type"],
            "kind": found.kind,
            "task": found.task,
            "pooling": found.pooling,
            "normalize": found.normalize,
            "vocab_size": encoder.vocab_size,
            "pad_token_id": encoder.pad_token_id,
            "positions": encoder.positions,
            "max_length": encoder.max_length,
        },
        "notes": [*found.notes, *encoder.notes],
        "options": options.recorded(),
        "onnx": {
            "files": weights,
            "opset": facts.opset,
            "ir_version": facts.ir_version,
            "exporter": EXPORTERS[encoder.exporter],
            **tensors,
        },
        "runner_sha256": sha256(RUNNER),
        "config_sha256": sha256(stage.model / publish.CONFIG),
        "parity": {
            "precision": "FP32",
            "allowed_of_peak": LARGEST,
            "passed": verdict(parity) is None,
            "points": [p.as_json() for p in parity],
        },
        "versions": {"python": platform.python_version(), **_versions()},
        "machine": machine(),
        "environment": quick(),
    }


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in _LIBRARIES:
        try:
            found[name] = installed(name)
        except ModuleNotFoundError:  # run from a checkout that is not installed
            found[name] = None
    return found
