"""How a server is reached: the options that every verb with a target has, and what they make.

It must not know what is sent.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from loadgen.connect.options import ConnectOptions

Header = Annotated[
    list[str] | None,
    typer.Option("--header", "-H", help='"name: value" on every request, gRPC metadata too; repeatable.'),
]
CaCert = Annotated[Path | None, typer.Option(help="Certificates to trust instead of the system's (PEM).")]
Cert = Annotated[Path | None, typer.Option(help="Our certificate (PEM), for a server that asks for one.")]
Key = Annotated[Path | None, typer.Option(help="Its key (PEM), if not in the same file.")]
Insecure = Annotated[bool, typer.Option("--insecure", help="Accept any certificate.")]


def connect_options(
    header: list[str] | None,
    cacert: Path | None,
    cert: Path | None,
    key: Path | None,
    insecure: bool,
    *,
    embedded: bool = False,
) -> ConnectOptions:
    """Raises LoadgenError for what cannot be: a server of our own (`embedded`) takes none of them."""
    from loadgen.connect.options import ConnectOptions, parse_headers
    from loadgen.records import LoadgenError

    options = ConnectOptions(parse_headers(header or []), cacert, cert, key, insecure)
    if embedded and options != ConnectOptions():
        raise LoadgenError("headers and TLS are for a server of yours: name it with --target")
    return options


def command(header: list[str] | None) -> list[str]:
    """The command line as it may be written down: headers hold secrets."""
    from loadgen.lab.run import redact

    return redact(sys.argv, header or [])
