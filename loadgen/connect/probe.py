"""A look at a server that broke off: does it speak TLS where we do not, or want a certificate of ours?

Only after something failed; it costs a connection and at most a few seconds.  Python's own blocking sockets in
a thread: they tell TLS alerts that event loops keep to themselves.  It must not know requests.
"""

import asyncio
import socket
import ssl

from loadgen.connect.options import ConnectOptions
from loadgen.connect.words import handshake_ended, tls_here, tls_reason
from loadgen.target import Target

_CONNECT_S = 2.0
_LISTEN_S = 0.5  # an alert about our certificate comes right after the handshake


async def diagnose(target: Target, options: ConnectOptions) -> str | None:
    """The TLS reason why a server that can be reached does not talk to us; None when it is not TLS."""
    return await asyncio.to_thread(_look, target, options)


def _look(target: Target, options: ConnectOptions) -> str | None:
    context = (options if target.tls else ConnectOptions(insecure=True)).ssl_context()
    context.set_alpn_protocols(["h2" if target.protocol == "grpc" else "http/1.1"])
    try:
        with socket.create_connection((target.host, target.port), _CONNECT_S) as raw:
            return _over_tls(raw, context, target) if target.tls else _any_tls(raw, context, target)
    except OSError:  # also ssl.SSLError where nothing is to be told
        return None


def _any_tls(raw: socket.socket, context: ssl.SSLContext, target: Target) -> str | None:
    try:
        with context.wrap_socket(raw, server_hostname=target.host):
            return tls_here(target)
    except ssl.SSLError as why:
        return tls_here(target) if "ALERT" in (why.reason or "") else None


def _over_tls(raw: socket.socket, context: ssl.SSLContext, target: Target) -> str | None:
    try:
        with context.wrap_socket(raw, server_hostname=target.host) as tls:
            tls.settimeout(_LISTEN_S)
            if tls.recv(1):
                return None
    except ssl.SSLError as why:
        return tls_reason(why, target)
    except TimeoutError:
        return None
    except ConnectionError:
        return handshake_ended(target)
    return handshake_ended(target)
