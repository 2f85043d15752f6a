"""One request through aiohttp, and its errors in our list of outcomes.  It must not know framing or who asked."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from loadgen.connect.options import ConnectOptions
from loadgen.connect.words import reason
from loadgen.records import Outcome, Request
from loadgen.seams import Clock
from loadgen.target import Target
from loadgen.transport.outcomes import as_profile_has_it
from loadgen.transport.reference_parts import Ended, Flight, PreparedReference
from loadgen.wire.errors import one_line
from loadgen.wire.http1 import HEAD_LIMIT, encode_request, failure_words
from loadgen.wire.statuses import http_outcome

if TYPE_CHECKING:
    import ssl

    import aiohttp

# aiohttp does not tell whether a request whose connection broke had been read: one that the server may be about
# to close is not used again
_IDLE_S = 1.0
_AUTO = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")  # what aiohttp would add


class HttpCarrier:
    """One session without limits, redirects, cookies, proxies or anything from the environment."""

    def __init__(self, target: Target, clock: Clock, options: ConnectOptions, timeout_ns: int) -> None:
        self._target = target
        self._now = clock.now_ns
        self._headers = options.headers_for(target)
        self._timeout_ns = timeout_ns
        self._tls: ssl.SSLContext | None = options.tls_for(target)
        self._session: aiohttp.ClientSession | None = None
        self.connections_opened = self.reconnects = self.resent = self.conn_waits = 0

    def prepare(self, request: Request) -> PreparedReference:
        from yarl import URL

        target = self._target
        size = len(
            encode_request(request, target.authority, target.base_path, self._headers)
        )  # checks it too
        path = f"{target.base_path}/{request.path.lstrip('/')}"
        url = URL(f"{'https' if target.tls else 'http'}://{target.authority}{path}", encoded=True)
        return PreparedReference((url, (*request.headers, *self._headers), request.body), size, request)

    async def open(self, connections: int) -> None:  # noqa: ARG002 - aiohttp opens them when they are needed
        import aiohttp

        if self._session is not None:
            return
        if self._tls is not None:
            self._tls.set_alpn_protocols(["http/1.1"])
        connector = aiohttp.TCPConnector(
            limit=0, ssl=self._tls or True, keepalive_timeout=_IDLE_S, ttl_dns_cache=None
        )
        trace = aiohttp.TraceConfig()
        trace.on_connection_create_start.append(self._waits)
        trace.on_connection_create_end.append(self._made)
        trace.on_connection_reuseconn.append(self._reused)
        self._session = aiohttp.ClientSession(
            connector=connector,
            trace_configs=[trace],
            trust_env=False,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=_AUTO,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._timeout_ns / 1e9),
            max_line_size=HEAD_LIMIT,
            max_field_size=HEAD_LIMIT,
        )

    async def _waits(self, _session: Any, _context: SimpleNamespace, _params: Any) -> None:
        self.conn_waits += 1

    async def _made(self, _session: Any, context: SimpleNamespace, _params: Any) -> None:
        self.connections_opened += 1
        context.trace_request_ctx.sent_ns = self._now()

    async def _reused(self, _session: Any, context: SimpleNamespace, _params: Any) -> None:
        context.trace_request_ctx.sent_ns = self._now()

    async def carry(self, flight: Flight, *, keep: bool) -> Ended:
        import aiohttp

        try:
            return await self._once(flight, keep=keep)
        except (aiohttp.ClientError, OSError) as why:
            return self._failed(flight, why)

    async def _once(self, flight: Flight, *, keep: bool) -> Ended:
        assert self._session is not None  # noqa: S101 - opened first
        url, headers, data = flight.prepared.request
        async with self._session.post(
            url, data=data, headers=headers, allow_redirects=False, trace_request_ctx=flight
        ) as answer:
            flight.first_ns = self._now()
            body = await answer.read()
            outcome = http_outcome(answer.status)
            detail = None
            fields = {name.lower(): value for name, value in answer.headers.items()}
            check, judge = flight.prepared.check, flight.prepared.judge
            if judge is not None:
                detail = judge(answer.status, fields, body)
                outcome = Outcome.OK if detail is None else self._refused(flight, answer, body)
            elif outcome is Outcome.OK and check is not None:
                if isinstance(said := check(fields, body), str):
                    outcome, detail = Outcome.PROTOCOL, said
            elif outcome is Outcome.PROTOCOL:
                detail = f"redirected to {answer.headers.get('Location', '?')}, which is not followed"
            elif outcome is not Outcome.OK:
                outcome = self._refused(flight, answer, body)
                detail = failure_words(body) or f"HTTP {answer.status}"
            head = 13 + len(answer.reason or "") + 4  # "HTTP/1.1 200 " … CRLF CRLF
            size = head + sum(len(name) + len(value) + 4 for name, value in answer.raw_headers) + len(body)
            kept = (fields, body) if keep else None
            return Ended(outcome, answer.status, size, detail, kept)

    def _refused(self, flight: Flight, answer: Any, body: bytes) -> Outcome:
        """What an answer that is no success is called."""
        text = body.decode("utf-8", "replace")
        outcome = http_outcome(answer.status, text, retry_after="Retry-After" in answer.headers)
        return as_profile_has_it(outcome or Outcome.PROTOCOL, answer.status, text, flight.prepared.full)

    def _failed(self, flight: Flight, why: Exception) -> Ended:
        """Outcome and words of what aiohttp raised."""
        import aiohttp

        if isinstance(why, aiohttp.ClientConnectorCertificateError):
            outcome, words = reason(why.certificate_error, self._target, self._timeout_ns)
        elif isinstance(why, aiohttp.ClientConnectorError):
            outcome, words = reason(why.os_error, self._target, self._timeout_ns)
        elif isinstance(why, TimeoutError):
            outcome, words = reason(TimeoutError(), self._target, self._timeout_ns)
        elif isinstance(why, aiohttp.ClientResponseError):
            flight.first_ns = flight.first_ns or self._now()
            return Ended(Outcome.PROTOCOL, 0, 0, one_line(why.message) or "not an HTTP/1 reply")
        elif isinstance(why, aiohttp.ClientPayloadError):
            words = one_line(str(why))
            short = "Not enough data" in words or type(why.__cause__).__name__ != "TransferEncodingError"
            kind = Outcome.STREAM_ENDED_EARLY if short else Outcome.PROTOCOL
            return Ended(kind, 0, 0, words)
        else:
            lost = Outcome.STREAM_ENDED_EARLY if flight.first_ns else Outcome.CONNECTION
            return Ended(lost, 0, 0, "the connection ended before the answer did")
        if not flight.first_ns:
            flight.sent_ns = 0
        return Ended(outcome, 0, 0, words)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
