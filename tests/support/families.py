"""Every model family at a small size, and one cell of the family table: converted, served, held against PyTorch."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from loadgen.convert.calibration import open_calibration
from loadgen.convert.config import FullTensor
from loadgen.convert.convert import convert
from loadgen.convert.encoder import load_encoder
from loadgen.convert.ladder import LIMITS, compare
from loadgen.convert.options import ConvertOptions, SourceOptions
from loadgen.convert.parity import ALONE_TORCH, make_feeds, torch_run
from loadgen.convert.precision import lower
from loadgen.convert.profiles import Span, ranges
from loadgen.convert.sources import find_source
from loadgen.convert.tensorrt import RTX, BuildOptions, build, find_tensorrt
from loadgen.enginebench.engines import Unavailable, dtype_of
from loadgen.records import LoadgenError
from tests.support.infer import ASK, executions, new_executions, together

VOCAB, WIDTH, POSITIONS = 101, 32, 64
MAX_BATCH = 8
LENGTHS = (3, 40, 7, 24, 1, 17)  # of requests that are sent at once
ALLOWED = {
    "fp32": 1e-4
}  # max abs, of the file and of what is served; other precisions go by their ladder and cosine
_CALIBRATION = (40, 3, 17, 24, 8, 31, 12, 48) * 4
_TEXT = {
    "vocab_size": VOCAB, "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 48, "max_position_embeddings": POSITIONS, "initializer_range": 0.2,
}  # fmt: skip
CONFIGS = {
    "bert": {"model_type": "bert", "type_vocab_size": 2, **_TEXT},
    "roberta": {"model_type": "roberta", "pad_token_id": 1, "type_vocab_size": 1, **_TEXT},
    "xlm-roberta": {"model_type": "xlm-roberta", "pad_token_id": 1, "type_vocab_size": 1, **_TEXT},
    "distilbert": {
        "model_type": "distilbert", "vocab_size": VOCAB, "dim": WIDTH, "n_layers": 2, "n_heads": 4,
        "hidden_dim": 48, "max_position_embeddings": POSITIONS, "initializer_range": 0.2,
    },
    "mpnet": {"model_type": "mpnet", "pad_token_id": 1, **_TEXT},
    "modernbert": {
        "model_type": "modernbert", "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1,
        "sep_token_id": 2, "global_attn_every_n_layers": 2, "local_attention": 16, **_TEXT,
    },
    "gpt2": {
        "model_type": "gpt2", "vocab_size": VOCAB, "n_embd": WIDTH, "n_layer": 2, "n_head": 4,
        "n_positions": POSITIONS, "initializer_range": 0.2, "bos_token_id": 0, "eos_token_id": 0,
    },
    "llama": {"model_type": "llama", "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2, **_TEXT},
    "t5": {
        "model_type": "t5", "vocab_size": VOCAB, "d_model": WIDTH, "d_kv": 8, "d_ff": 48, "num_layers": 2,
        "num_heads": 4, "decoder_start_token_id": 0,
    },
    "vit": {
        "model_type": "vit", "image_size": 16, "patch_size": 8, "num_channels": 3, "hidden_size": WIDTH,
        "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "initializer_range": 0.2,
    },
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A row of the table.  `weights` are real only where a package brings them."""

    family: str
    task: str
    weights: str = "random"
    pooling: str | None = None

    @property
    def name(self):
        return f"{self.family}-{self.task}" + ("-real" if self.weights != "random" else "")

    def asked(self):
        if self.weights != "random":
            return SourceOptions()
        return SourceOptions(task=self.task, pooling=self.pooling, random_seed=1)

    def source(self, top):
        """What to give to convert: a folder with a config alone, or the package's name."""
        if self.weights != "random":
            return self.weights
        return str(write_config(Path(top) / self.family, self.family))


CASES = (
    Case("bert", "embedding", weights="minilm"),
    Case("bert", "features"),
    Case("roberta", "features"),
    Case("roberta", "classification"),
    Case("xlm-roberta", "token-classification"),
    Case("distilbert", "classification"),
    Case("mpnet", "embedding", pooling="mean"),
    Case("modernbert", "features"),
    Case("gpt2", "causal"),
    Case("llama", "causal"),
    Case("t5", "features"),
    Case("t5", "causal"),
    Case("vit", "features"),
    Case("vit", "classification"),
)
QUICK = (Case("distilbert", "classification"), Case("t5", "causal"), Case("vit", "classification"))


def write_config(folder, family):
    """A folder that holds a config.json and nothing else."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIGS[family]))
    return folder


@dataclass
class Cell:
    """What became of a case: figures are the largest differences, `why` the reason where it failed."""

    case: Case
    precision: str
    onnx: float | None = None
    alone: dict = field(default_factory=dict)  # by protocol
    batched: dict = field(default_factory=dict)
    batches: dict = field(default_factory=dict)  # {batch size: executions} of what was sent at once
    cosine: float | None = None  # the worst answer's of what was served
    why: str = ""
    torch: float | str = ""  # PyTorch's own row alone against itself padded, or why it does not run this
    engine: str = ""  # what TensorRT for RTX made of the file, or why not
    sidecar: dict = field(default_factory=dict)

    @property
    def name(self):
        return self.case.name + ("" if self.precision == "fp32" else f"-{self.precision}")

    @property
    def passed(self):
        figures = [self.onnx, *self.alone.values(), *self.batched.values()]
        right = all(f is not None and f <= ALLOWED.get(self.precision, np.inf) for f in figures)
        return not self.why and right and (self.cosine or 0) >= LIMITS[self.precision].cosine


def convert_case(case, top, repository, precision="fp32", delay_ns=200_000_000):
    """Publishes it as `case.name`; the reason where it cannot be."""
    cell = Cell(case, precision)
    quantized = precision in ("int8", "fp8")
    options = ConvertOptions(
        name=cell.name,
        precision=precision,
        calibration=_calibration(case, top) if quantized else None,
        repository=repository,
        max_batch=MAX_BATCH,
        delay_ns=delay_ns,
        max_length=POSITIONS - 16,
        threads=1,
        source=case.asked(),
    )
    try:
        result = convert(case.source(top), options)
    except LoadgenError as why:
        cell.why = str(why)
        return cell
    steps = result.sidecar.get("ladder", {}).get("steps", ())
    files = [point.max_abs for point in result.parity if point.check != ALONE_TORCH]
    cell.onnx = max([point["max_abs"] for point in steps] or files)
    cell.torch = max((point.max_abs for point in result.parity if point.check == ALONE_TORCH), default=0.0)
    try:
        dtype_of(precision)
    except Unavailable as why:
        cell.torch = str(why)
    cell.sidecar = result.sidecar
    return cell


def build_case(cell, repository, top):
    """Builds the file, lowered as for an engine, with TensorRT for RTX; nothing here can run what comes out."""
    told = cell.sidecar
    inputs = [FullTensor(t["name"], t["datatype"], tuple(t["shape"])) for t in told["onnx"]["inputs"]]
    longest = told["model"]["max_length"]
    shapes = ranges(inputs, Span(1, MAX_BATCH, MAX_BATCH), [Span(1, longest, longest)])
    file = Path(top) / f"{cell.name}.plan"
    whole, onnx = repository / cell.case.name / "1" / "model.onnx", file.with_suffix(".onnx")
    try:
        found = find_tensorrt(RTX)
        if cell.precision == "fp32":
            onnx.write_bytes(whole.read_bytes())
        else:
            source = find_source(cell.case.source(top), cell.case.asked())
            encoder = load_encoder(source, POSITIONS - 16)
            rows = open_calibration(_calibration(cell.case, top), encoder, source.folder)
            lower(whole, onnx, cell.precision, calibration=rows, tensorrt=True)
        built = build(found, onnx, file, BuildOptions(shapes, target="8.9"))
    except LoadgenError as why:
        cell.engine = f"failed: {why}"
        return cell
    finally:
        file.unlink(missing_ok=True)
        onnx.unlink(missing_ok=True)
    types = ", ".join(sorted({t.datatype for t in built.facts.inputs}))
    cell.engine = f"built, {built.plan_bytes / 1e6:.1f} MB, takes {types}"
    return cell


def _calibration(case, top):
    """Random rows of several lengths, within what each input takes."""
    encoder = load_encoder(find_source(case.source(top), case.asked()), POSITIONS - 16)
    lengths = _CALIBRATION if encoder.padded else (1,) * len(_CALIBRATION)
    file = Path(top) / f"{case.name}.npz"
    np.savez(file, **make_feeds(encoder, lengths, np.random.default_rng(5)))
    return file


def serve_case(cell, server, top):
    """Asks the server alone and all at once, over both protocols, and fills the cell in."""
    case = cell.case
    encoder = load_encoder(find_source(case.source(top), case.asked()), POSITIONS - 16)
    rng = np.random.default_rng(11)
    requests = [make_feeds(encoder, [n if encoder.padded else 1], rng) for n in LENGTHS]
    requests.append(make_feeds(encoder, [9, 4] if encoder.padded else [1, 1], rng))
    want = [torch_run(encoder)(feeds) for feeds in requests]
    for protocol, ask in ASK.items():
        start = executions(server, cell.name)
        alone = [ask(server, cell.name, feeds) for feeds in (requests[1], requests[-1])]
        new_executions(server, cell.name, start, 3)  # one row and two
        before = executions(server, cell.name)
        batched = together(server, protocol, cell.name, requests)
        refused = [answer for answer in (*alone, *batched) if isinstance(answer, str)]
        if refused:
            cell.why = refused[0]
            return cell
        cell.alone[protocol] = max(
            gap(a, b, encoder) for a, b in zip(alone, (want[1], want[-1]), strict=True)
        )
        cell.batched[protocol] = max(gap(a, b, encoder) for a, b in zip(batched, want, strict=True))
        pairs = zip((*alone, *batched), (want[1], want[-1], *want), strict=True)
        cosines = [compare("", "", 1, encoder, b[:1], a[:1]).cosine for a, b in pairs]
        cell.cosine = min([cell.cosine, *cosines] if cell.cosine is not None else cosines)
        rows = sum(len(answer) for answer in batched)
        cell.batches[protocol] = new_executions(server, cell.name, before, rows)
    return cell


def gap(got, want, encoder):
    """The largest difference.  Of two rows in a request the second is padded; its padding is not looked at."""
    if got.shape != want.shape:
        return float("inf")
    if encoder.per_token and len(want) > 1:
        got, want = np.concatenate([got[0], got[1, :4]]), np.concatenate([want[0], want[1, :4]])
    return float(np.abs(got.astype(np.float64) - want).max())
