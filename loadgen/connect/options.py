"""What a person says about connections: headers, whom to trust, who we are.  One meaning for every protocol.

The load, the control plane and the metrics take the same ConnectOptions, so that an option can never reach
only one of them.  It must not know sockets or event loops, and never shows the value of a header.
"""

import base64
import binascii
import re
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from loadgen.records import LoadgenError
from loadgen.target import Target

Headers = tuple[tuple[str, str], ...]

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")  # RFC 9110, 5.6.2
_METADATA = re.compile(r"[0-9a-z_.\-]+")
_OURS = ("connection", "content-length", "content-type", "inference-header-content-length", "te",
         "transfer-encoding")  # fmt: skip
_HOST = re.compile(r"(?:[0-9A-Za-z._~\-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
_ENCRYPTED = "it is protected by a password; write it without one (openssl pkey -in KEY -out PLAIN)"


class _PasswordAskedError(Exception):
    """OpenSSL would ask on the terminal."""


@dataclass(frozen=True, slots=True)
class ConnectOptions:
    """Headers as (name, value); `cacert` replaces the system's authorities; `cert` and `key` are ours.

    A `Host` header takes the place of the target's own (gRPC: of :authority): gateways route by it.  TLS goes by
    the target's name all the same.  `key` may be left out when `cert` holds both.  `insecure` accepts whatever certificate comes.  Raises
    LoadgenError for what cannot be; files are read by `ssl_context`.
    """

    headers: Headers = field(default=(), repr=False)  # values are secrets: never shown
    cacert: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        for name, value in self.headers:
            _check_header(name, value)
        if sum(name.lower() == "host" for name, _ in self.headers) > 1:
            raise LoadgenError("header Host: there can be only one")
        if self.key is not None and self.cert is None:
            raise LoadgenError(f"--key {self.key}: a key is of no use without its certificate (--cert)")
        if self.insecure and self.cacert is not None:
            raise LoadgenError("--insecure and --cacert: either verify against this CA or do not verify")

    def check(self, target: Target) -> None:
        """Everything that can be told before connecting: files, headers, options that would act on nothing.

        Raises LoadgenError.
        """
        self.headers_for(target)
        if target.tls:
            self.ssl_context()
            return
        given = [name for name in ("cacert", "cert", "key", "insecure") if getattr(self, name)]
        if given:
            secure = replace(target, tls=True).url
            names = " and ".join(f"--{name}" for name in given)
            raise LoadgenError(f"{names}: {target.url} is not TLS; write {secure}, or leave that out")

    def headers_for(self, target: Target) -> Headers:
        """As they go on the wire of the target's protocol.  Raises LoadgenError for what gRPC cannot carry."""
        return self.headers if target.protocol != "grpc" else tuple(map(_metadata, self.headers))

    def grpcio_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        """For the official gRPC library, which encodes `-bin` names itself and takes the host otherwise."""
        return tuple(
            (name, _decoded(name, value) if name.endswith("-bin") else value)
            for name, value in map(_metadata, self.headers)
            if name != "host"
        )

    def authority(self, target: Target) -> str:
        """What requests say they are for: the `Host` header, else the target's host and port."""
        return next((value for name, value in self.headers if name.lower() == "host"), target.authority)

    def tls_for(self, target: Target) -> ssl.SSLContext | None:
        """None for a target without TLS."""
        return self.ssl_context() if target.tls else None

    def ssl_context(self) -> ssl.SSLContext:
        """A new one at each call (whoever connects sets its ALPN).  Raises LoadgenError naming file and fault."""
        if self.cacert is None:
            context = ssl.create_default_context()
        else:
            context = ssl.create_default_context(cadata=_authorities(self.cacert))
            # Python 3.13 has both as its defaults the other way round: one rule for all versions.  A server's
            # own certificate may be the thing trusted, and home-made ones lack fields that no client needs.
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.cert is not None:
            _load_pair(context, self.cert, self.key)
        return context


def parse_headers(texts: Iterable[str]) -> Headers:
    """Texts like `Name: value`, as curl takes them.  Raises LoadgenError, without the value in it."""
    headers = []
    for text in texts:
        name, colon, value = text.partition(":")
        if not colon or not name.strip():
            raise LoadgenError('a header is written "Name: value", e.g. "Authorization: Bearer TOKEN"')
        headers.append((name.strip(), value.strip(" \t")))
        _check_header(*headers[-1])
    return tuple(headers)


def _check_header(name: str, value: str) -> None:
    if _TOKEN.fullmatch(name) is None:
        raise LoadgenError(f"header {name!r}: a name is made of letters, digits and !#$%&'*+-.^_`|~")
    if name.lower() in _OURS:
        raise LoadgenError(f"header {name}: loadgen sets it itself, as it does {', '.join(_OURS)}")
    if not value.isascii() or not value.isprintable():
        raise LoadgenError(f"header {name}: its value must be one line of printable ASCII (it is not shown)")
    if name.lower() == "host" and _HOST.fullmatch(value) is None:
        raise LoadgenError(
            "header Host: its value is a name or address, with :port or without (it is not shown)"
        )


def _metadata(header: tuple[str, str]) -> tuple[str, str]:
    given, value = header
    name = given.lower()
    if _METADATA.fullmatch(name) is None:
        raise LoadgenError(f"header {given}: gRPC metadata names are made of a-z, 0-9, _ - .")
    if name.startswith("grpc-"):
        raise LoadgenError(f"header {given}: names that begin with grpc- are gRPC's own")
    if name.endswith("-bin"):
        _decoded(name, value)
    return name, value


def _decoded(name: str, value: str) -> bytes:
    """Bytes of a `-bin` value; the padding may be left out, as gRPC does."""
    try:
        return base64.b64decode(value + "=" * (-len(value) % 4), validate=True)
    except binascii.Error:
        raise LoadgenError(
            f"header {name}: the value of a -bin name must be base64 (it is not shown)"
        ) from None


def _read(option: str, path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError as why:
        raise LoadgenError(f"--{option} {path}: {(why.strerror or str(why)).lower()}") from None


def _authorities(path: Path) -> str:
    text = _read("cacert", path)
    try:
        ssl.create_default_context(cadata=text)
    except (ssl.SSLError, ValueError):
        raise LoadgenError(
            f"--cacert {path}: holds no certificate in PEM form (-----BEGIN CERTIFICATE-----)"
        ) from None
    return text


def _load_pair(context: ssl.SSLContext, cert: Path, key: Path | None) -> None:
    if "-----BEGIN CERTIFICATE-----" not in _read("cert", cert):
        raise LoadgenError(f"--cert {cert}: holds no certificate in PEM form (-----BEGIN CERTIFICATE-----)")
    where = f"--cert {cert}" if key is None else f"--key {key}"
    if "PRIVATE KEY-----" not in _read("key" if key else "cert", key or cert):
        more = "; name its file with --key" if key is None else " in PEM form"
        raise LoadgenError(f"{where}: holds no private key{more}")

    def refuse() -> str:
        raise _PasswordAskedError

    try:
        context.load_cert_chain(cert, key, refuse)
    except _PasswordAskedError:
        raise LoadgenError(f"{where}: {_ENCRYPTED}") from None
    except ssl.SSLError as why:
        if why.reason == "KEY_VALUES_MISMATCH":
            raise LoadgenError(f"{where}: the key does not belong to the certificate {cert}") from None
        raise LoadgenError(f"--cert {cert}, {where}: cannot be read as PEM") from None
