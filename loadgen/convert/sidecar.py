"""What a conversion leaves beside its files, read again by others.

Pure reading.  It must not know how a model is converted.
"""

import json
from pathlib import Path

SIDECAR = "convert.json"


def engine_rows(path: Path) -> tuple[int, int] | None:
    """The fewest and most rows of a TensorRT engine, from the record beside a configuration or an engine.

    `path` is a model's folder or a file in it; None where no record tells of an engine.
    """
    folder = path if path.is_dir() else path.parent
    for file in sorted((*folder.glob(SIDECAR), *folder.glob(f"*/{SIDECAR}"))):
        try:
            profiles = json.loads(file.read_text(encoding="utf-8"))["tensorrt"]["profiles"]
            spans = [(low[0], high[0]) for one in profiles for low, _, high in one.values()]
        except (OSError, ValueError, KeyError, TypeError, IndexError):
            continue  # not of an engine
        if spans:
            return min(low for low, _ in spans), max(high for _, high in spans)
    return None
