"""Why a connection failed: the exception in words that say what to do.  They are never empty.

It must not know how anything is sent.
"""

import errno
import socket
import ssl
from dataclasses import replace

from loadgen.records import Outcome
from loadgen.target import Target
from loadgen.units import show_ns
from loadgen.wire.errors import one_line

_OURS = {
    errno.EMFILE: "too many open files in this process (raise `ulimit -n`)",
    errno.ENFILE: "too many open files on this machine",
    errno.EADDRNOTAVAIL: "no free local port left for another connection",
}
_RESET = (errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED)
_TIME = (9, 10)  # X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_CERT_HAS_EXPIRED
_NAME = (62, 63, 64)  # X509_V_ERR_HOSTNAME_MISMATCH, _EMAIL_, _IP_ADDRESS_
_NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "PACKET_LENGTH_TOO_LONG",
           "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL", "UNEXPECTED_MESSAGE")  # fmt: skip
_OUR_CERT = ("BAD_CERTIFICATE", "UNSUPPORTED_CERTIFICATE", "CERTIFICATE_REVOKED", "CERTIFICATE_EXPIRED",
             "CERTIFICATE_UNKNOWN", "UNKNOWN_CA", "ACCESS_DENIED", "DECRYPT_ERROR")  # fmt: skip


def other_scheme(target: Target) -> str:
    """The same address with TLS, or without it."""
    return replace(target, tls=not target.tls).url


def reason(  # noqa: PLR0911 - one return a cause
    why: BaseException, target: Target, timeout_ns: int
) -> tuple[Outcome, str]:
    """What a failed attempt is called, and its cause."""
    if isinstance(why, TimeoutError):
        return Outcome.CONNECT, f"no connection within {show_ns(timeout_ns)}"
    if isinstance(why, socket.gaierror):
        return Outcome.CONNECT, f"name not found: {target.host}"
    if isinstance(why, ssl.SSLError):
        return Outcome.CONNECT, tls_reason(why, target)
    if isinstance(why, ConnectionRefusedError):
        return Outcome.CONNECT, "connection refused"
    if isinstance(why, OSError) and why.errno in _OURS:
        return Outcome.CLIENT, _OURS[why.errno]
    if isinstance(why, ConnectionError) and (why.errno is None or why.errno in _RESET):
        return Outcome.CONNECT, handshake_ended(target) if target.tls else "connection reset"
    return Outcome.CONNECT, one_line(str(why)) or type(why).__name__


def lasting(why: BaseException) -> bool:
    """True for what no waiting mends: the server is there, and we do not agree with it."""
    return isinstance(why, ssl.SSLError) and not isinstance(why, ssl.SSLEOFError)


def handshake_ended(target: Target) -> str:
    """The peer hung up before TLS stood, without a word."""
    return (
        f"the connection ended during the TLS handshake: does the server speak TLS here (else write "
        f"{other_scheme(target)}), or does it ask for a client certificate (--cert and --key)?"
    )


def tls_here(target: Target) -> str:
    return f"the server speaks TLS here: write {other_scheme(target)}"


def tls_reason(why: ssl.SSLError, target: Target) -> str:  # noqa: PLR0911 - one return a cause
    """A failed handshake, or an alert that came after it."""
    if isinstance(why, ssl.SSLCertVerificationError):
        return _not_accepted(why, target)
    if isinstance(why, ssl.SSLEOFError):
        return handshake_ended(target)
    told = (why.reason or str(why)).upper()
    if any(name in told for name in _NO_TLS) and "ALERT" not in told:
        return f"the server does not speak TLS here: write {other_scheme(target)}"
    if "CERTIFICATE_REQUIRED" in told:
        return "the server asks for a client certificate (--cert and --key)"
    words = _plain(told)
    if "ALERT" in told and any(name in told for name in _OUR_CERT):
        return f"the server does not accept our client certificate: {words} (--cert and --key)"
    if "NO_APPLICATION_PROTOCOL" in told:
        wanted = "HTTP/2, which gRPC needs" if target.protocol == "grpc" else "HTTP/1.1"
        return f"the server does not offer {wanted}, on this TLS port"
    if "HANDSHAKE_FAILURE" in told:
        return f"the server refused the TLS handshake: {words}; it may ask for a client certificate (--cert and --key)"
    return f"TLS failed: {words}"


def plain_words(text: str) -> str:
    """A library's reason as part of our sentence."""
    text = " ".join(text.split())
    return text[:1].lower() + text[1:] if text[1:2].islower() else text


def _not_accepted(why: ssl.SSLCertVerificationError, target: Target) -> str:
    words = one_line(why.verify_message or str(why)).rstrip(".")
    if why.verify_code in _NAME:
        hint = (
            f"write a name in the target that the certificate is for, instead of {target.host}; or --insecure"
        )
    elif why.verify_code in _TIME:
        hint = "renew it, look at this machine's clock, or do not verify: --insecure"
    else:
        hint = "name its CA with --cacert FILE, or do not verify: --insecure"
    return f"the server's certificate is not accepted: {words} ({hint})"


def _plain(told: str) -> str:
    """TLSV13_ALERT_CERTIFICATE_REQUIRED as "certificate required"."""
    return one_line(told.rpartition("ALERT_")[2].replace("_", " ").lower())
