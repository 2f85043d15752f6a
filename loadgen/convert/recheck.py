"""A published model asked on a running server: the source is found again by its sidecar, and must be the same.

It must not start or stop servers.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from loadgen.convert.calibration import text_samples
from loadgen.convert.encoder import Encoder, contained, load_encoder, require_libraries
from loadgen.convert.ladder import Climb, climb
from loadgen.convert.options import SourceOptions
from loadgen.convert.served import served_rungs
from loadgen.convert.sidecar import SIDECAR
from loadgen.convert.sources import MINILM, Source, find_source
from loadgen.records import LoadgenError
from loadgen.target import Target, parse_target


class RecheckError(LoadgenError):
    """A published model whose source is not there any more, or is another."""


def recheck(
    folder: Path,
    targets: Sequence[str],
    *,
    model: str | None = None,
    rows: int = 24,
    progress: Callable[[str], None] = lambda _: None,
) -> Climb:
    """Every target's rungs against PyTorch.  Raises a LoadgenError: no sidecar, another source, no answer."""
    places = [parse_target(text) for text in targets]
    told = _sidecar(folder)
    require_libraries()
    progress(f"loading {told['source']['label']}")
    with contained(told["source"]["label"]):
        found, encoder = _source(told, folder)
        return _climbed(found, encoder, told, places, model, rows, progress)


def _climbed(
    found: Source,
    encoder: Encoder,
    told: dict[str, Any],
    places: Sequence[Target],
    model: str | None,
    rows: int,
    progress: Callable[[str], None],
) -> Climb:
    precision = told["options"].get("precision", "fp32")
    samples = text_samples(encoder, found.folder)
    steps: list[Any] = []
    faults: list[str] = []
    for place in places:
        progress(f"asking {place.url}")
        with served_rungs(place, model or told["name"]) as rungs:
            one = climb(
                encoder, rungs, precision, samples=samples, rows=rows, max_batch=told["options"]["max_batch"]
            )
        steps += one.steps
        faults += one.faults
    return Climb(precision, tuple(steps), tuple(faults))


def _sidecar(folder: Path) -> dict[str, Any]:
    file = folder / SIDECAR
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
        told["source"]["label"], told["source"]["sha256"], told["options"]["max_batch"], told["name"]
    except OSError:
        raise RecheckError(
            f"{file} is missing; give a version folder that loadgen convert published, e.g. "
            "model_repository/minilm/1"
        ) from None
    except (ValueError, KeyError, TypeError):
        raise RecheckError(f"{file} is no record of a conversion") from None
    return dict(told)


def _source(told: dict[str, Any], folder: Path) -> tuple[Source, Encoder]:
    label, origin = told["source"]["label"], told["source"]["origin"]
    asked = told["options"].get("source", {})
    if "inputs" in asked or "trust_remote_code" in asked:
        raise RecheckError(
            f"{label} was converted with an inputs file or code of its own; convert it again instead"
        )
    options = SourceOptions(**{**asked, "tensors": tuple(asked.get("tensors", ()))})
    found = find_source(origin if label != MINILM and Path(origin).exists() else label, options)
    if found.digests() != told["source"]["sha256"]:
        raise RecheckError(
            f"{found.origin} has changed since {folder} was converted from it; convert it again"
        )
    return found, load_encoder(found, told["model"]["max_length"])
