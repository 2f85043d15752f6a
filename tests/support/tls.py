"""Certificates for tests: a CA of their own, and what servers and clients are given of it.  Nothing is kept."""

import datetime as dt
import ssl

import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

_PAST = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)


class Authority:
    """A CA with its files in a folder: `cacert`; pairs by `issue`."""

    def __init__(self, folder):
        self.folder = folder
        self.ca = trustme.CA()
        self.cacert = folder / "ca.pem"
        self.ca.cert_pem.write_to_path(str(self.cacert))

    def issue(self, name, *names, expired=False):
        """(certificate file, key file) for host names or addresses; loopback's if none is given."""
        dates = {"not_before": _PAST, "not_after": _PAST + dt.timedelta(days=9)} if expired else {}
        issued = self.ca.issue_cert(*(names or ("127.0.0.1", "localhost")), **dates)
        cert, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(str(key))
        return cert, key

    def server_context(self, pair, *, client_ca=None, newest=None):
        """For a server of the ssl module; with `client_ca` it wants a certificate of its clients."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*pair)
        context.set_alpn_protocols(["h2", "http/1.1"])
        if newest is not None:
            context.maximum_version = newest
        if client_ca is not None:
            context.load_verify_locations(client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def grpc_credentials(self, pair, *, client_ca=None):
        """For grpcio's own server."""
        import grpc

        cert, key = pair
        root = client_ca.read_bytes() if client_ca is not None else None
        return grpc.ssl_server_credentials(
            [(key.read_bytes(), cert.read_bytes())], root, require_client_auth=client_ca is not None
        )


def with_password(key):
    """The same key file, protected."""
    locked = key.with_suffix(".locked")
    loaded = load_pem_private_key(key.read_bytes(), None)
    locked.write_bytes(
        loaded.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    )
    return locked
