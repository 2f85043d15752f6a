"""The options that say how a model's source is to be understood, and what they make."""

from pathlib import Path
from typing import Annotated

import typer

Task = Annotated[
    str | None,
    typer.Option(
        help="features, embedding, classification, token-classification or causal; left out, the folder's own."
    ),
]
Pooling = Annotated[
    str | None, typer.Option(help="mean, cls or last: one vector a row, where the folder does not say.")
]
RandomWeights = Annotated[
    int | None,
    typer.Option(metavar="SEED", help="Random weights of this seed: the config alone will do."),
]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run Python code that lies in the folder.")
]
Inputs = Annotated[
    Path | None, typer.Option(help="YAML or JSON that describes the inputs of a module or file.")
]
Tensor = Annotated[
    list[str] | None,
    typer.Option("--input", help="One input, name:dtype:dims[:low..high], as x:FP32:batch,3,224,224:-1..1."),
]
Output = Annotated[
    str | None,
    typer.Option(
        help="The output that is meant, where there are several; a name for it, where a module has one."
    ),
]
