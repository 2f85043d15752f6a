"""A model's configuration as tritonclient's ModelConfig message: from a config.pbtxt, or the JSON form of a server.

It must not know what is right or wise in a configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadgen.records import LoadgenError

CONFIG = "config.pbtxt"


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


def config_message(config: Mapping[str, Any]) -> Any:
    """The message of a configuration in the JSON form that servers tell."""
    from google.protobuf import json_format
    from tritonclient.grpc.model_config_pb2 import ModelConfig

    try:
        return json_format.ParseDict(dict(config), ModelConfig(), ignore_unknown_fields=True)
    except json_format.ParseError as why:
        raise LoadgenError(f"the server's configuration cannot be read: {' '.join(str(why).split())}") from None
