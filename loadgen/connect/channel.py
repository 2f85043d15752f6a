"""The official gRPC library's channel to a target: no proxy, no size limits, our TLS, and its failures in words.

For the control plane and the reference transport.  It must not know services or messages.
"""

import asyncio
import re
from typing import Any

from loadgen.connect.bridge import Bridge
from loadgen.connect.options import ConnectOptions
from loadgen.connect.probe import diagnose
from loadgen.connect.words import lasting, plain_words
from loadgen.target import Target

_NO_CONNECTION = re.compile(
    r"failed to connect|connection (?:refused|reset)|socket closed|resolution|resolve|http1|handshake|tls|ssl|"
    r"endpoint closing|broken pipe|timed? ?out|no route|unreachable|goaway|end of tcp stream",
    re.IGNORECASE,
)
_NO_NAME = re.compile(
    r"errors resolving |(?:dns|name) resolution|(?:address|hostname|dns) lookup|domain name not found",
    re.IGNORECASE,
)
_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.service_config_disable_resolution", 1),  # a name server sets no policy for a measurement
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # no back-off inherited from another channel
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


class OfficialChannel:
    """Opened at the first `open`; a channel of its own, with its own connection."""

    def __init__(self, target: Target, options: ConnectOptions) -> None:
        self._target = target
        self._options = options
        self._bridge = Bridge(target, options) if target.tls else None
        self._channel: Any = None
        self._opening = asyncio.Lock()

    async def open(self) -> Any:
        """The `grpc.aio.Channel`, the same one each time; it connects when it is used."""
        async with self._opening:
            if self._channel is None:
                import grpc

                address, options = self._target.authority, list[tuple[str, Any]](_OPTIONS)
                if self._bridge is not None:
                    address = await self._bridge.open()
                options.append(("grpc.default_authority", self._options.authority(self._target)))
                self._channel = grpc.aio.insecure_channel(address, options)
            return self._channel

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close()
            self._channel = None
        if self._bridge is not None:
            await self._bridge.close()

    async def failure(self, details: str) -> tuple[str, bool]:
        """Why there is no connection, and whether that will last; `details` are the library's."""
        if self._bridge is not None and self._bridge.failure is not None:
            return self._bridge.words() or "", lasting(self._bridge.failure)
        if _NO_NAME.search(details) is not None:
            return f"name not found: {self._target.host}", False
        known = connection_words(details)
        if known != "connection refused":
            told = await diagnose(self._target, self._options)
            if told is not None:
                return told, True
        return known, False


def lost_connection(details: str) -> bool:
    """Whether the details of an UNAVAILABLE speak of the connection; else they are the server's words."""
    return _NO_CONNECTION.search(details) is not None or _NO_NAME.search(details) is not None


def connection_words(details: str) -> str:
    """The library's details in few words."""
    lowered = details.lower()
    if "http1" in lowered or "http/1" in lowered:
        return "it speaks HTTP/1.1, not gRPC (is this the HTTP port?)"
    if "socket closed" in lowered:
        return "it closed the connection (does it speak gRPC? is this the HTTP port?)"
    for known in ("connection refused", "connection reset"):
        if known in lowered:
            return known
    return plain_words(details)
