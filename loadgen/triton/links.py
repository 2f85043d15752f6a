"""How the control plane's questions travel: the Link, and KServe v2's own calls over HTTP.

Every link gives the same JSON forms (ints as ints), so nothing above can tell which one it has.
Links must not know what the answers mean, nor repeat or wait for anything.
"""

import asyncio
import json
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

from loadgen.connect.options import ConnectOptions
from loadgen.connect.probe import diagnose
from loadgen.connect.words import lasting, plain_words, reason
from loadgen.records import LoadgenError, Request
from loadgen.target import Target
from loadgen.wire.errors import ProtocolError
from loadgen.wire.http1 import Heads, ResponseReader, encode_request
from loadgen.wire.kserve_http import model_path

if TYPE_CHECKING:
    import ssl

_OK = 200
_PIECE = 2**18
ANSWER_S = 10.0  # of one question of the control plane; loads have their own limit


class NoServerError(LoadgenError):
    """Nothing answers at the target."""


@dataclass
class ServerSaidError(Exception):
    """The server refused.  `absent` is True when it has no such call at all (an extension it lacks)."""

    status: str  # "HTTP 404", "NOT_FOUND"
    message: str
    absent: bool = False


class Link(Protocol):
    """Raises NoServerError, ServerSaidError.  An empty version leaves the choice to the server."""

    async def live(self) -> bool: ...
    async def ready(self) -> bool: ...
    async def model_ready(self, model: str, version: str) -> bool: ...
    async def metadata(self) -> dict[str, Any]: ...
    async def model_metadata(self, model: str, version: str) -> dict[str, Any]: ...
    async def config(self, model: str, version: str) -> dict[str, Any]: ...
    async def statistics(self, model: str, version: str, timeout_s: float | None) -> dict[str, Any]: ...
    async def index(self) -> list[dict[str, Any]]: ...
    async def load(self, model: str, config: str | None, timeout_s: float) -> None: ...
    async def unload(self, model: str) -> None: ...
    async def trace(self, model: str, settings: dict[str, Any] | None) -> dict[str, Any]: ...
    async def memory(self) -> list[str]: ...
    async def register_memory(self, name: str, key: str, size: int) -> None: ...
    async def unregister_memory(self, name: str) -> None: ...
    async def close(self) -> None: ...


def no_server(target: Target, why: str) -> NoServerError:
    hint = " (loadgen serve start)" if target.dialect == "kserve" else ""
    return NoServerError(f"no server answers at {target.url}: {why}; is it running?{hint}")


def no_agreement(target: Target, why: str) -> LoadgenError:
    """The server is there, but TLS came to nothing: no waiting mends it, so it is no NoServerError."""
    return LoadgenError(f"no connection to {target.url}: {why}")


class HttpLink:
    """On the wire's own framing, a connection a question: no proxy and no settings from the environment."""

    def __init__(self, target: Target, options: ConnectOptions, *, timeout_s: float) -> None:
        self._target = target
        self._options = options
        self._timeout_s = timeout_s
        self._headers = options.headers_for(target)
        self._tls: ssl.SSLContext | None = options.tls_for(target)

    async def live(self) -> bool:
        return (await self._send("GET", "/v2/health/live"))[0] == _OK

    async def ready(self) -> bool:
        return (await self._send("GET", "/v2/health/ready"))[0] == _OK

    async def model_ready(self, model: str, version: str) -> bool:
        return (await self._send("GET", f"{_path(model, version)}/ready"))[0] == _OK

    async def metadata(self) -> dict[str, Any]:
        return _dict(await self._json("GET", "/v2"))

    async def model_metadata(self, model: str, version: str) -> dict[str, Any]:
        return _dict(await self._json("GET", _path(model, version)))

    async def config(self, model: str, version: str) -> dict[str, Any]:
        return _dict(await self._json("GET", f"{_path(model, version)}/config"))

    async def statistics(self, model: str, version: str, timeout_s: float | None) -> dict[str, Any]:
        path = f"{_path(model, version)}/stats" if model else "/v2/models/stats"
        return _dict(await self._json("GET", path, None, timeout_s))

    async def index(self) -> list[dict[str, Any]]:
        answer = await self._json("POST", "/v2/repository/index", {})
        rows = [_dict(row) for row in answer] if isinstance(answer, list) else []
        return [row for row in rows if isinstance(row.get("name"), str)]

    async def load(self, model: str, config: str | None, timeout_s: float) -> None:
        body = {} if config is None else {"parameters": {"config": config}}
        await self._json("POST", f"/v2/repository/models/{quote(model, safe='')}/load", body, timeout_s)

    async def unload(self, model: str) -> None:
        await self._json("POST", f"/v2/repository/models/{quote(model, safe='')}/unload", {})

    async def trace(self, model: str, settings: dict[str, Any] | None) -> dict[str, Any]:
        """The trace settings of a model, after changing those given (None: the server's again)."""
        path = f"{_path(model, '')}/trace/setting"
        return _dict(await self._json("GET" if settings is None else "POST", path, settings))

    async def memory(self) -> list[str]:
        """The names of the system shared memory regions that the server knows."""
        answer = await self._json("GET", "/v2/systemsharedmemory/status")
        return [str(_dict(row).get("name")) for row in answer] if isinstance(answer, list) else []

    async def register_memory(self, name: str, key: str, size: int) -> None:
        body = {"key": key, "offset": 0, "byte_size": size}
        await self._json("POST", f"/v2/systemsharedmemory/region/{quote(name, safe='')}/register", body)

    async def unregister_memory(self, name: str) -> None:
        await self._json("POST", f"/v2/systemsharedmemory/region/{quote(name, safe='')}/unregister", {})

    async def close(self) -> None:
        """Nothing is kept open: each question has its own connection."""

    async def get(self, path: str) -> tuple[int, str]:
        """Status and text of any path below the target's own, percent-encoded and with a leading slash."""
        return await self._send("GET", path)

    async def _json(self, method: str, path: str, body: Any = None, timeout_s: float | None = None) -> Any:
        status, text = await self._send(method, path, body, timeout_s)
        if status == _OK:
            if not text.strip():
                return {}
            with suppress(ValueError):
                return json.loads(text)
            raise LoadgenError(f"{self._target.url} does not speak KServe v2: {path} gave no JSON")
        message = text
        with suppress(ValueError, KeyError, TypeError):
            message = str(json.loads(text)["error"])
        raise ServerSaidError(f"HTTP {status}", message, absent=status in (404, 405, 501))

    async def _send(
        self, method: str, path: str, body: Any = None, timeout_s: float | None = None
    ) -> tuple[int, str]:
        limit_s = timeout_s or self._timeout_s
        data = b"" if body is None else json.dumps(body).encode()
        kind = () if body is None else (("Content-Type", "application/json"),)
        request = Request(path, kind, data, method)
        message = encode_request(request, self._target.authority, self._target.base_path, self._headers)
        connected = False
        try:
            async with asyncio.timeout(limit_s):
                reader, writer = await asyncio.open_connection(
                    self._target.host, self._target.port, ssl=self._tls
                )
                connected = True
                try:
                    writer.write(message)
                    return await _reply(reader)
                finally:
                    writer.transport.abort()
        except TimeoutError:
            raise no_server(self._target, f"no answer within {limit_s:g} s") from None
        except (ProtocolError, OSError, EOFError) as why:
            raise await self._failure(why, connected=connected) from None

    async def _failure(self, why: Exception, *, connected: bool) -> LoadgenError:
        """In words: no connection, no TLS, no HTTP."""
        if lasting(why):
            return no_agreement(self._target, reason(why, self._target, 0)[1])
        if connected or isinstance(why, ConnectionError):  # it was there, and broke off
            told = await diagnose(self._target, self._options)
            if told is not None:
                return no_agreement(self._target, told)
        if connected:
            hint = "it is no HTTP server (is this the gRPC port?)"
            return no_server(self._target, f"{plain_words(str(why)) or type(why).__name__}, {hint}")
        # asyncio's own text for a refused connection ("Connect call failed (...)") says less than errno.
        number = why.errno if isinstance(why, OSError) else None
        told = os.strerror(number) if number and number > 0 else reason(why, self._target, 0)[1]
        return no_server(self._target, plain_words(told))


async def _reply(reader: asyncio.StreamReader) -> tuple[int, str]:
    """Status and body of the one reply of a connection.  Raises ProtocolError, EOFError, OSError."""
    parser = ResponseReader(Heads())
    parser.reset(keep_body=True)
    whole = False
    while not whole:
        data = await reader.read(_PIECE)
        whole = parser.feed(data) if data else parser.eof()
        if not data and not whole:
            raise EOFError("the server closed the connection before its answer was whole")
    assert parser.head is not None  # noqa: S101 - a whole reply has one
    return parser.head.status, parser.body.decode("utf-8", "replace")


def _path(model: str, version: str) -> str:
    return f"/{model_path(model, version)}"


def _dict(answer: Any) -> dict[str, Any]:
    if not isinstance(answer, dict):
        raise LoadgenError(f"the server does not speak KServe v2: an object was expected, got {answer!r:.80}")
    return answer
