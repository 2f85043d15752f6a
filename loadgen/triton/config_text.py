"""A model's configuration as tritonclient's ModelConfig message: from a config.pbtxt, or the JSON form of a server.

It must not know what is right or wise in a configuration.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from loadgen.records import LoadgenError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CONFIG, SIDECAR = "config.pbtxt", "convert.json"


def read_config(path: Path) -> Any:
    """The message of a config.pbtxt, or of a model's folder with one.  Raises LoadgenError with line and column."""
    from google.protobuf import text_format
    from tritonclient.grpc.model_config_pb2 import ModelConfig

    file = path / CONFIG if path.is_dir() else path
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise LoadgenError(f"{file}: no such file; give a {CONFIG} or a model's folder") from None
    except (OSError, UnicodeDecodeError) as why:
        raise LoadgenError(f"{file}: cannot be read: {why}") from None
    try:
        config = text_format.Parse(text, ModelConfig())
    except text_format.ParseError as why:
        raise LoadgenError(f"{file}: no model configuration: {' '.join(str(why).split())}") from None
    if not config.name:
        config.name = file.absolute().parent.name  # as Triton has it
    return config


def engine_rows(path: Path) -> tuple[int, int] | None:
    """The fewest and most rows of a TensorRT engine that `loadgen convert` built, from the convert.json beside the
    configuration or the engine; None where there is none.
    """
    folder = path if path.is_dir() else path.parent
    for file in sorted((*folder.glob(SIDECAR), *folder.glob(f"*/{SIDECAR}"))):
        try:
            profiles = json.loads(file.read_text(encoding="utf-8"))["tensorrt"]["profiles"]
            spans = [(low[0], high[0]) for one in profiles for low, _, high in one.values()]
        except (OSError, ValueError, KeyError, TypeError, IndexError):
            continue
        if spans:
            return min(low for low, _ in spans), max(high for _, high in spans)
    return None


def config_message(config: Mapping[str, Any]) -> Any:
    """The message of a configuration in the JSON form that servers tell."""
    from google.protobuf import json_format
    from tritonclient.grpc.model_config_pb2 import ModelConfig

    try:
        return json_format.ParseDict(dict(config), ModelConfig(), ignore_unknown_fields=True)
    except json_format.ParseError as why:
        raise LoadgenError(
            f"the server's configuration cannot be read: {' '.join(str(why).split())}"
        ) from None
