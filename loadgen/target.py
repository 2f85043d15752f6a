"""Where the load goes: one syntax everywhere, `http://host:8000/base`, `grpc://host:8001`, `openai+http://host:8000/v1`.

Text in, a frozen Target out.  It must not know connections, and it resolves no names.
"""

import re
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from loadgen.records import LoadgenError

_SCHEMES = {"http": ("http", False, 8000), "https": ("http", True, 8000),
            "grpc": ("grpc", False, 8001), "grpcs": ("grpc", True, 8001),
            "openai+http": ("http", False, 8000), "openai+https": ("http", True, 443)}  # fmt: skip
_OPENAI = "openai+"
_BASES = {"kserve": "", "openai": "/v1"}  # of an address without a path
_PATH_SAFE = "/%:@!$&'()*+,;=~-._"  # what is escaped already, or may stand as it is
_HOST_CHARS = 253  # RFC 1035, as text
_ALLOWED = "http://host:8000, https://…, grpc://host:8001, grpcs://… or openai+http://host:8000/v1"


class TargetError(LoadgenError):
    """A target that cannot be understood."""


@dataclass(frozen=True, slots=True)
class Target:
    """`protocol` is "http" or "grpc"; `dialect` "kserve", or "openai" over HTTP.

    `base_path` is "" or "/x/y" without a trailing slash.
    """

    protocol: str
    host: str
    port: int
    tls: bool = False
    base_path: str = ""
    dialect: str = "kserve"

    @property
    def is_local(self) -> bool:
        """Whether its name says that it is this machine."""
        return self.host in ("127.0.0.1", "::1", "localhost")

    @property
    def url(self) -> str:
        """The normal form, which `parse_target` reads back to an equal Target."""
        scheme = self.protocol + ("s" if self.tls else "")
        if self.dialect == "openai":
            return f"{_OPENAI}{scheme}://{self.authority}{self.base_path or '/'}"
        return f"{scheme}://{self.authority}{self.base_path}"

    @property
    def authority(self) -> str:
        """host:port, an IPv6 address in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_target(text: str, *, protocol: str | None = None) -> Target:
    """Reads a target.  A bare `host:port` is http, unless `protocol` says "grpc"; `openai+http://host` means its /v1.

    Raises TargetError: unknown scheme, a scheme at odds with `protocol`, no host or one that no name server
    can know, a bad port, a path with gRPC, credentials in the URL (they would end up in files).
    """
    given = text.strip()
    whole = given if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", given) else f"{protocol or 'http'}://{given}"
    if not all(char.isprintable() and char != " " for char in given):
        raise TargetError(
            f"target {text!r}: spaces and control characters have no place here; allowed: {_ALLOWED}"
        )
    try:
        parts = urlsplit(whole)
        port = parts.port
    except ValueError as why:
        raise TargetError(f"target {text!r}: {why}; allowed: {_ALLOWED}") from None
    if parts.scheme not in _SCHEMES:
        raise TargetError(f"target {text!r}: unknown scheme {parts.scheme!r}; allowed: {_ALLOWED}")
    kind, tls, default_port = _SCHEMES[parts.scheme]
    if protocol is not None and kind != protocol:
        fix = f"{protocol}{'s' if tls else ''}://{parts.netloc}"
        raise TargetError(f"target {text!r}: the scheme {parts.scheme!r} is not {protocol}; write {fix}")
    if parts.username is not None or parts.password is not None:
        raise TargetError("target: credentials do not belong in the address, it is written to files")
    if not parts.hostname or port == 0:
        raise TargetError(f"target {text!r}: no {'port' if parts.hostname else 'host'}; allowed: {_ALLOWED}")
    if parts.netloc.endswith(":"):
        raise TargetError(f"target {text!r}: no port after ':'; allowed: {_ALLOWED}")
    base = quote(parts.path.rstrip("/"), safe=_PATH_SAFE)
    if parts.query or parts.fragment:
        raise TargetError(f"target {text!r}: '?' and '#' have no place here; allowed: {_ALLOWED}")
    if base and kind == "grpc":
        raise TargetError(f"target {text!r}: gRPC has no base path; write {parts.scheme}://{parts.netloc}")
    dialect = "openai" if parts.scheme.startswith(_OPENAI) else "kserve"
    base = base if parts.path else _BASES[dialect]
    return Target(kind, _host(text, parts.hostname), port or default_port, tls, base, dialect)


def _host(text: str, name: str) -> str:
    """As name servers know it: letters beyond ASCII in their ASCII form (xn--...)."""
    try:
        host = name.encode("idna").decode()
    except UnicodeError:
        host = ""
    if not host or len(host) > _HOST_CHARS:
        raise TargetError(
            f"target {text[:100]!r}: no host can have this name: between its dots stand 1 to 63 characters, "
            f"at most {_HOST_CHARS} in all"
        )
    return host
