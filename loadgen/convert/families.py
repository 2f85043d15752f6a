"""Hugging Face folders by task: which class is loaded, what goes in, which of its answers is served.

Local files only, and a folder's own code only when asked for.  Imports torch, so it is imported where it is used.
It must not know ONNX or Triton.
"""

import inspect
from typing import Any

import torch

from loadgen.convert import wrappers
from loadgen.convert.encoder import Encoder, EncoderError, first_line, quiet
from loadgen.convert.inputs import BATCH, LENGTH, LONGEST, Input
from loadgen.convert.sources import Source
from loadgen.environment.facts import available_memory
from loadgen.units import show_bytes

_CLASSES = {  # by task: text, image, and text with an encoder and a decoder
    "features": ("AutoModel", "AutoModel", "AutoModelForTextEncoding"),
    "embedding": ("AutoModel", "AutoModel", "AutoModelForTextEncoding"),
    "classification": ("AutoModelForSequenceClassification", "AutoModelForImageClassification", None),
    "token-classification": ("AutoModelForTokenClassification", None, None),
    "causal": ("AutoModelForCausalLM", None, "AutoModelForSeq2SeqLM"),
}
_OUTPUTS = {"features": "last_hidden_state", "embedding": "sentence_embedding"}  # of every head: logits
_SAME = 1e-5  # beyond rounding
_TEXT, _IMAGE, _PAIR = range(3)
_ENCODER_LENGTH = "encoder_length"


def load(source: Source, max_length: int | None) -> Encoder:
    """A folder as an Encoder; raises EncoderError."""
    with quiet():
        model = _model(source)
        if source.is_image:
            return _image(source, model)
        return _text(source, model, max_length)


def _model(source: Source) -> Any:
    import transformers

    kind = _IMAGE if source.is_image else _PAIR if source.is_pair else _TEXT
    name = _CLASSES[source.task][kind]
    if name is None:
        raise EncoderError(f"{source.folder}: a {source.config['model_type']} has no task {source.task}")
    how: dict[str, Any] = {
        "trust_remote_code": source.trust_remote_code,
        "dtype": torch.float32,
        # Fewer nodes than "sdpa" and no branch on the mask that an export can freeze.
        "attn_implementation": "eager",
    }
    auto = getattr(transformers, name)
    folder = str(source.folder)
    try:
        if source.random_seed is None:
            _require_room(source, sum(file.stat().st_size for file in source.weights))
            model, told = auto.from_pretrained(folder, local_files_only=True, output_loading_info=True, **how)
            _require_filled(source, told)
        else:
            config = transformers.AutoConfig.from_pretrained(
                folder, local_files_only=True, trust_remote_code=source.trust_remote_code
            )
            with torch.device("meta"):  # shapes alone
                shapes = auto.from_config(config, **how).parameters()
                _require_room(source, sum(4 * one.numel() for one in shapes))
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(source.random_seed)
                model = auto.from_config(config, **how)
    except EncoderError:
        raise
    except Exception as why:  # noqa: BLE001 - whatever a broken folder makes the library raise
        if "auto_map" in source.config and not source.trust_remote_code:
            raise EncoderError(
                f"{source.folder}: the model needs code of its own, which is never run unless you ask: "
                "read it, then give --trust-remote-code"
            ) from None
        if "Unrecognized configuration class" in str(why):
            kind_of = source.config["model_type"]
            raise EncoderError(f"{source.folder}: a {kind_of} has no task {source.task}") from None
        if "ignore_mismatched_sizes" in str(why):  # its details were on a log that nobody sees
            raise EncoderError(
                f"{source.folder}: the weights have other shapes than config.json says"
            ) from None
        raise EncoderError(f"{source.folder} cannot be loaded: {first_line(why)}") from None
    return model.eval()


def _require_room(source: Source, least: int) -> None:
    """The kernel ends a process that takes more memory than there is, without a word."""
    if (there := available_memory()) is not None and least > there:
        raise EncoderError(
            f"{source.folder}: the weights alone take {show_bytes(least)} of memory, and {show_bytes(there)} are "
            "available"
        )


def _require_filled(source: Source, told: Any) -> None:
    """Random numbers in place of weights would pass parity; only a pooler that nobody reads may be missing."""
    unread = ("pooler",) if source.task != "classification" else ()
    missing = sorted(key for key in told["missing_keys"] if not any(word in key for word in unread))
    wrong = missing or sorted(str(key) for key in told.get("mismatched_keys", ()))
    if wrong:
        task = f"; is {source.task} its task?" if source.task not in _OUTPUTS else ""
        raise EncoderError(
            f"{source.folder}: the weights do not fill the model, {len(wrong)} are missing, first {wrong[0]}{task}"
        )


def _text(source: Source, model: Any, max_length: int | None) -> Encoder:
    accepted = inspect.signature(model.forward).parameters
    wanted = [name for name in ("input_ids", "attention_mask") if name not in accepted]
    vocab_size = getattr(model.config, "vocab_size", None)
    if wanted or not isinstance(vocab_size, int):
        raise EncoderError(
            f"{source.folder}: not a text encoder, it takes no {' or '.join(wanted) or 'tokens'}"
        )
    types = getattr(model.config, "type_vocab_size", 0) or 0
    if "token_type_ids" not in accepted or source.is_pair:
        types = 0
    positions = _positions(model)
    limit = max_length or min(source.max_length or LONGEST, positions)
    if limit > positions:
        raise EncoderError(
            f"max length {limit}: {source.label} has {positions} positions, allowed is 1..{positions}"
        )
    pad = getattr(model.config, "pad_token_id", None)
    pad = pad if isinstance(pad, int) and 0 <= pad < vocab_size else 0
    if source.task == "classification" and model.config.pad_token_id is None and _reads_last(model):
        model.config.pad_token_id = pad  # such a head looks for the last real token by it
    given: tuple[Input, ...] = ()
    # A table of one type (RoBERTa) is a leftover: nothing could be said with it.
    inputs = ["input_ids", "attention_mask"] + ["token_type_ids"] * (types > 1)
    decoder = source.is_pair and source.task == "causal"
    if decoder:
        given = _decoder_inputs(model.config.d_model, vocab_size, pad, positions)
        inputs = [one.name for one in given]
    per_token = source.task not in ("embedding", "classification")
    module = (
        wrappers.Decoder(model) if decoder else wrappers.Text(model, source.pooling, source.normalize)
    ).eval()
    width = _width(module, inputs, given, source)
    if source.task == "causal":
        _require_causal(source, module, inputs, given, vocab_size)
    return Encoder(
        module=module,
        inputs=tuple(inputs),
        output=_OUTPUTS.get(source.task, "logits"),
        width=width,
        per_token=per_token,
        vocab_size=vocab_size,
        pad_token_id=pad,
        type_vocab_size=types,
        positions=positions,
        max_length=limit,
        given=given,
    )


def _positions(model: Any) -> int:
    """Usable positions: RoBERTa-like tables start counting behind the padding id."""
    table = getattr(getattr(model.base_model, "embeddings", None), "position_embeddings", None)
    padding = getattr(table, "padding_idx", None)
    declared = getattr(model.config, "max_position_embeddings", None)
    if not isinstance(declared, int) or declared < 1:
        return LONGEST
    return declared - (0 if padding is None else padding + 1)


def _reads_last(model: Any) -> bool:
    return not hasattr(model.base_model, "embeddings")


def _ones(inputs: list[str], given: tuple[Input, ...], size: int) -> dict[str, torch.Tensor]:
    shapes = {one.name: tuple(a if isinstance(a, int) else size for a in one.axes) for one in given}
    floats = {one.name for one in given if one.datatype == "FP32"}
    return {
        name: torch.ones(
            shapes.get(name, (size, size)), dtype=torch.float32 if name in floats else torch.int64
        )
        for name in inputs
    }


def _width(module: torch.nn.Module, inputs: list[str], given: tuple[Input, ...], source: Source) -> int:
    try:
        with torch.no_grad():
            return int(module(**_ones(inputs, given, 2)).shape[-1])
    except Exception as why:  # noqa: BLE001 - whatever a model of a strange config raises
        raise EncoderError(f"{source.folder} cannot be run: {first_line(why)}") from None


def _require_causal(
    source: Source, module: torch.nn.Module, inputs: list[str], given: tuple[Input, ...], vocab_size: int
) -> None:
    """A BERT has a language-model class too: it loads, passes parity, and reads the words it should predict."""
    feeds = _ones(inputs, given, 3)
    other = feeds | {"input_ids": feeds["input_ids"].clone()}
    other["input_ids"][:, -1] = min(2, vocab_size - 1)
    with torch.no_grad():
        gap = (module(**feeds) - module(**other))[:, :-1].abs().max()
    if gap > _SAME:
        raise EncoderError(
            f"{source.folder}: this {source.config['model_type']} is not causal, a later token changes the answer "
            "at an earlier one; give another --task"
        )


def _image(source: Source, model: Any) -> Encoder:
    """Pixels in; a vision model has one size of image, so its answer's shape is fixed but for the batch."""
    size, channels = model.config.image_size, getattr(model.config, "num_channels", 3)
    height, width = size if isinstance(size, list | tuple) else (size, size)
    given = (Input("pixel_values", "FP32", (BATCH, channels, height, width), low=-1),)
    module = wrappers.Image(model, source.pooling, source.normalize).eval()
    return Encoder(
        module=module,
        inputs=("pixel_values",),
        output=_OUTPUTS.get(source.task, "logits"),
        width=_width(module, ["pixel_values"], given, source),
        per_token=False,
        vocab_size=0,
        pad_token_id=0,
        type_vocab_size=0,
        positions=1,
        max_length=1,
        given=given,
        padded=False,
    )


def _decoder_inputs(width: int, vocab_size: int, pad: int, positions: int) -> tuple[Input, ...]:
    spans = {LENGTH: (1, positions), _ENCODER_LENGTH: (1, LONGEST)}
    states = (BATCH, _ENCODER_LENGTH)
    return (
        Input("input_ids", "INT64", (BATCH, LENGTH), 0, vocab_size - 1, pad, tokens=True, spans=spans),
        Input("encoder_hidden_states", "FP32", (*states, width), -1, 1, spans=spans),
        Input("encoder_attention_mask", "INT64", states, 0, 1, mask=True, spans=spans),
    )
