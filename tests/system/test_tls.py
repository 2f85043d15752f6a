"""TLS, headers and proxies: one meaning for the load and the control plane, over both protocols (cases 14 and 15)."""

import asyncio
import base64
import pickle
import socket
import ssl
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import null_server
from independent import grpc_server, http_server
from tls import Authority, with_password
from told import LOOPS, Told

from loadgen.clock import MONOTONIC
from loadgen.connect.options import ConnectOptions, parse_headers
from loadgen.records import LoadgenError, Outcome, Tensor
from loadgen.target import parse_target
from loadgen.transport.grpc import GrpcTransport
from loadgen.transport.http import HttpTransport
from loadgen.triton.control import Control
from loadgen.triton.links import NoServerError
from loadgen.wire import kserve_grpc, kserve_http

TENSOR = Tensor("x", "FP32", (1, 4), bytes(range(16)))


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def pair(authority):
    return authority.issue("loopback")


@pytest.fixture(params=sorted(LOOPS))
def run(request):
    return LOOPS[request.param]


@pytest.fixture(params=["http", "grpc"])
def protocol(request):
    return request.param


@contextmanager
def serving(protocol, authority=None, pair=None, client_ca=None):
    """A server of that protocol, with TLS if there is a pair."""
    if protocol == "http":
        tls = authority.server_context(pair, client_ca=client_ca) if pair else None
        with http_server(tls=tls) as server:
            yield server
    else:
        credentials = authority.grpc_credentials(pair, client_ca=client_ca) if pair else None
        with grpc_server(credentials=credentials) as server:
            yield server


def target_of(server, host="127.0.0.1", scheme=None):
    return parse_target(f"{scheme or server.url_scheme}://{host}:{server.port}")


async def ask(target, options):
    """The control plane's answer."""
    async with Control(target, options=options, timeout_ns=5 * 10**9) as control:
        return (await control.server_metadata())["name"]


async def load(target, options, count=3):
    """Outcomes of some requests through the wire transport, and what came back last."""
    make, codec = (GrpcTransport, kserve_grpc) if target.protocol == "grpc" else (HttpTransport, kserve_http)
    transport = make(
        target, MONOTONIC, headers=options.headers_for(target), tls=options.tls_for(target),
        connect_timeout_ns=3 * 10**9,
    )  # fmt: skip
    try:
        await transport.open(told := Told(), 1)
        for token in range(count):
            told.send(transport, token, transport.prepare(codec.infer_request("m", "", [TENSOR])))
        await told.wait(count)
        return told
    finally:
        await transport.close()


def both_work(run, target, options):
    assert run(ask(target, options)) == "independent"
    assert run(load(target, options)).outcomes == {"OK": 3}


def both_refuse(run, target, options, words):
    """The control plane and the load say the same; the control plane says it at once, as nothing to wait for."""
    with pytest.raises(LoadgenError, match=words) as caught:
        run(ask(target, options))
    assert not isinstance(caught.value, NoServerError)
    assert "\n" not in str(caught.value)
    with pytest.raises(LoadgenError, match=words):
        run(load(target, options))


# -- whom to trust ------------------------------------------------------------------------------------------------


def test_own_ca_and_no_verification_reach_load_and_control(run, protocol, authority, pair):
    with serving(protocol, authority, pair) as server:
        for host in ("127.0.0.1", "localhost"):
            target = target_of(server, host)
            both_work(run, target, ConnectOptions(cacert=authority.cacert))
            both_work(run, target, ConnectOptions(insecure=True))
            both_refuse(
                run, target, ConnectOptions(), r"certificate is not accepted: .*--cacert FILE.*--insecure"
            )


def test_another_ca_is_not_enough_but_the_servers_own_certificate_is(
    run, protocol, authority, pair, tmp_path
):
    with serving(protocol, authority, pair) as server:
        target = target_of(server)
        both_refuse(
            run, target, ConnectOptions(cacert=Authority(tmp_path).cacert), "certificate is not accepted"
        )
        both_work(run, target, ConnectOptions(cacert=pair[0]))


def test_an_expired_certificate(run, protocol, authority):
    with serving(protocol, authority, authority.issue("old", expired=True)) as server:
        words = r"not accepted: certificate has expired \(renew it, .*--insecure\)"
        both_refuse(run, target_of(server), ConnectOptions(cacert=authority.cacert), words)
        both_work(run, target_of(server), ConnectOptions(insecure=True))


def test_a_certificate_for_another_name(run, protocol, authority):
    with serving(protocol, authority, authority.issue("other", "elsewhere.test")) as server:
        for host, told in (("127.0.0.1", "IP address mismatch"), ("localhost", "Hostname mismatch")):
            words = rf"not accepted: {told}, .*{host}.* \(write a name in the target .*instead of {host}; or --insecure"
            both_refuse(run, target_of(server, host), ConnectOptions(cacert=authority.cacert), words)
        both_work(run, target_of(server), ConnectOptions(insecure=True))


def test_a_client_certificate(run, protocol, authority, pair, tmp_path):
    cert, key = authority.issue("client", "client.test")
    with serving(protocol, authority, pair, client_ca=authority.cacert) as server:
        target = target_of(server)
        options = ConnectOptions(cacert=authority.cacert, cert=cert, key=key)
        options.check(target)
        both_work(run, target, options)
        joined = tmp_path / "both.pem"
        joined.write_bytes(cert.read_bytes() + key.read_bytes())
        both_work(run, target, ConnectOptions(insecure=True, cert=joined))
        with pytest.raises(LoadgenError, match=r"client certificate.* \(--cert and --key\)"):
            run(ask(target, ConnectOptions(cacert=authority.cacert)))
        stranger = Authority(tmp_path).issue("stranger")
        wrong = ConnectOptions(cacert=authority.cacert, cert=stranger[0], key=stranger[1])
        with pytest.raises(LoadgenError, match=r"client certificate.* \(--cert and --key\)"):
            run(ask(target, wrong))


# -- TLS where there is none, and the other way round ----------------------------------------------------------------


def test_tls_spoken_to_a_plain_port(run, protocol):
    with serving(protocol) as server:
        target = target_of(server, scheme=server.url_scheme + "s")
        words = rf"write {server.url_scheme}://127.0.0.1:{server.port}"
        with pytest.raises(LoadgenError, match=words):
            run(ask(target, ConnectOptions()))
        with pytest.raises(LoadgenError, match=words):
            run(load(target, ConnectOptions()))


def test_plain_spoken_to_a_tls_port(run, protocol, authority, pair):
    with serving(protocol, authority, pair) as server:
        target = target_of(server, scheme=protocol)
        words = rf"the server speaks TLS here: write {protocol}s://127.0.0.1:{server.port}"
        with pytest.raises(LoadgenError, match=words) as caught:
            run(ask(target, ConnectOptions()))
        assert not isinstance(caught.value, NoServerError)


def test_a_server_that_is_not_up_yet_is_still_worth_waiting_for(run, protocol):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        target = parse_target(f"{protocol}s://127.0.0.1:{probe.getsockname()[1]}")
        with pytest.raises(NoServerError, match="connection refused; is it running"):
            run(ask(target, ConnectOptions(insecure=True)))


def test_grpc_on_a_tls_port_that_speaks_only_http_1(run, authority, pair):
    class Web(asyncio.Protocol):
        def connection_made(self, transport):
            self.transport = transport

        def data_received(self, _):
            self.transport.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async def job(go):
        async with null_server.serving(Web, ssl=authority.server_context(pair)) as port:
            with pytest.raises(LoadgenError, match=r"speaks HTTP/1.1.*, not gRPC"):
                await go(parse_target(f"grpcs://127.0.0.1:{port}"), ConnectOptions(insecure=True))

    run(job(ask))
    run(job(load))


# -- options -----------------------------------------------------------------------------------------------------------


def test_files_that_will_not_do(authority, pair, tmp_path):
    cert, key = pair
    other_key = authority.issue("second")[1]
    empty = tmp_path / "empty.pem"
    empty.write_text("nothing\n")
    broken = tmp_path / "broken.pem"
    broken.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    for given, words in [
        ({"cacert": tmp_path / "none.pem"}, r"--cacert \S+none.pem: no such file or directory"),
        ({"cacert": tmp_path}, r"--cacert \S+: is a directory"),
        ({"cacert": empty}, r"--cacert \S+empty.pem: holds no certificate in PEM form"),
        ({"cacert": broken}, r"--cacert \S+broken.pem: holds no certificate in PEM form"),
        ({"cert": tmp_path / "none.pem"}, r"--cert \S+none.pem: no such file or directory"),
        ({"cert": empty, "key": key}, r"--cert \S+empty.pem: holds no certificate in PEM form"),
        ({"cert": broken, "key": key}, r"--cert \S+broken.pem, --key \S+: cannot be read as PEM"),
        ({"cert": cert}, r"--cert \S+loopback.pem: holds no private key; name its file with --key"),
        ({"cert": cert, "key": tmp_path / "none.key"}, r"--key \S+none.key: no such file or directory"),
        ({"cert": cert, "key": empty}, r"--key \S+empty.pem: holds no private key in PEM form"),
        ({"cert": cert, "key": other_key}, r"--key \S+second.key: the key does not belong to the certificate \S+loopback.pem"),
        ({"cert": cert, "key": with_password(key)}, r"--key \S+loopback.locked: it is protected by a password"),
    ]:  # fmt: skip
        with pytest.raises(LoadgenError, match=words) as caught:
            ConnectOptions(**given).check(parse_target("https://h:1"))
        assert "\n" not in str(caught.value)


def test_options_that_would_act_on_nothing_are_refused(authority, pair):
    for given, words in [
        ({"cacert": authority.cacert}, r"--cacert: grpc://h:1 is not TLS; write grpcs://h:1, or leave"),
        ({"insecure": True, "cert": pair[0]}, r"--cert and --insecure: grpc://h:1 is not TLS"),
    ]:
        with pytest.raises(LoadgenError, match=words):
            ConnectOptions(**given).check(parse_target("grpc://h:1"))
    with pytest.raises(LoadgenError, match=r"--key .*: a key is of no use without its certificate"):
        ConnectOptions(key=pair[1])
    with pytest.raises(LoadgenError, match="--insecure and --cacert"):
        ConnectOptions(insecure=True, cacert=authority.cacert)


def test_each_context_is_new_and_verifies_unless_told_not_to(authority):
    options = ConnectOptions(cacert=authority.cacert)
    first, second = options.ssl_context(), options.ssl_context()
    assert first is not second
    assert (first.verify_mode, first.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert len(first.get_ca_certs()) == 1  # the own CA stands for all, not beside the system's
    blind = ConnectOptions(insecure=True).ssl_context()
    assert (blind.verify_mode, blind.check_hostname) == (ssl.CERT_NONE, False)


def test_headers_are_read_checked_and_never_shown():
    headers = parse_headers(["Authorization:  Bearer s3cret ", "X-Empty:", "a:b:c"])
    assert headers == (("Authorization", "Bearer s3cret"), ("X-Empty", ""), ("a", "b:c"))
    options = ConnectOptions(headers=headers)
    assert "s3cret" not in repr(options) + str(options)
    assert pickle.loads(pickle.dumps(options)) == options  # workers get them
    for text, words in [
        ("s3cret", "a header is written"),
        (": s3cret", "a header is written"),
        ("a b: s3cret", "a name is made of"),
        ("a\r\nb: s3cret", "a name is made of"),
        ("a: s3cret\r\nb: c", "one line of printable ASCII"),
        ("a: s3cret\0", "one line of printable ASCII"),
        ("a: s3cret é", "one line of printable ASCII"),
        ("Content-Length: 3", "loadgen sets it itself"),
        ("Host: s3cret/x", "its value is a name or address"),
        ("Host:", "its value is a name or address"),
    ]:
        with pytest.raises(LoadgenError, match=words) as caught:
            parse_headers([text])
        assert "s3cret" not in str(caught.value)
        assert "\n" not in str(caught.value)


def test_metadata_has_rules_of_its_own():
    grpc, http = parse_target("grpc://h:1"), parse_target("http://h:1")
    options = ConnectOptions(headers=(("X-A", "1"), ("Trace-Bin", "AAEC"), ("b-bin", "AA==")))
    assert options.headers_for(http) == options.headers
    assert options.headers_for(grpc) == (("x-a", "1"), ("trace-bin", "AAEC"), ("b-bin", "AA=="))
    assert options.grpcio_metadata() == (("x-a", "1"), ("trace-bin", b"\0\1\2"), ("b-bin", b"\0"))
    for header, words in [
        (("x!", "s3cret"), "metadata names are made of"),
        (("grpc-timeout", "1S"), "gRPC's own"),
        (("x-bin", "s3cret!"), "must be base64"),
        (("x-bin", "s3cre"), "must be base64"),
    ]:
        options = ConnectOptions(headers=(header,))
        options.check(http)
        with pytest.raises(LoadgenError, match=words) as caught:
            options.check(grpc)
        assert "s3cre" not in str(caught.value)


def test_headers_reach_the_server_from_load_and_control(run, protocol):
    blob = base64.b64encode(b"\0\xffblob").decode()
    options = ConnectOptions(
        headers=parse_headers(["Authorization: Bearer t", "X-Two: 1", "X-Two: 2", f"y-bin: {blob}"])
    )
    with serving(protocol) as server:
        both_work(run, target_of(server), options)
    assert len(server.seen) == 4
    for _, seen in server.seen:
        pairs = [(name.lower(), value) for name, value in seen]
        assert ("authorization", "Bearer t") in pairs
        assert [value for name, value in pairs if name == "x-two"] in (["1", "2"], ["1,2"])
        assert ("y-bin", b"\0\xffblob" if protocol == "grpc" else blob) in pairs


# -- no proxy --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("secure", [False, True])
def test_proxies_of_the_environment_are_never_used(run, protocol, authority, pair, secure, monkeypatch):
    touched = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as trap:
        trap.settimeout(0.05)

        def watch():
            while not done.is_set():
                try:
                    trap.accept()[0].close()
                    touched.set()
                except TimeoutError:
                    pass

        done = threading.Event()
        watcher = threading.Thread(target=watch)
        watcher.start()
        proxy = f"http://127.0.0.1:{trap.getsockname()[1]}"
        for name in ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy"):
            monkeypatch.setenv(name, proxy)
            monkeypatch.setenv(name.upper(), proxy)
        for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
            monkeypatch.delenv(name, raising=False)
        try:
            with serving(protocol, authority, pair if secure else None) as server:
                both_work(
                    run,
                    target_of(server, "localhost"),
                    ConnectOptions(cacert=authority.cacert if secure else None),
                )
        finally:
            done.set()
            watcher.join()
    assert not touched.is_set()


# -- the bridge leaves nothing ------------------------------------------------------------------------------------------


def test_the_control_planes_bridge_is_private_and_goes_away(authority, pair, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    async def job(server):
        async with Control(target_of(server), options=ConnectOptions(cacert=authority.cacert)) as control:
            await asyncio.gather(*(control.server_metadata() for _ in range(5)))
            (folder,) = tmp_path.iterdir()
            assert folder.stat().st_mode & 0o777 == 0o700
        assert list(tmp_path.iterdir()) == []

    with serving("grpc", authority, pair) as server:
        asyncio.run(job(server))


def test_a_large_answer_crosses_the_bridge_whole(authority, pair):
    from loadgen.connect.channel import OfficialChannel

    async def job(server):
        from tritonclient.grpc import service_pb2 as pb
        from tritonclient.grpc import service_pb2_grpc

        channel = OfficialChannel(target_of(server), ConnectOptions(insecure=True))
        stub = service_pb2_grpc.GRPCInferenceServiceStub(await channel.open())
        data = bytes(range(256)) * 80_000
        request = kserve_grpc.infer_request("m", "", [Tensor("x", "UINT8", (len(data),), data)])
        answer = await stub.ModelInfer(pb.ModelInferRequest.FromString(request.body))
        assert answer.raw_output_contents[0] == data
        await channel.close()

    with serving("grpc", authority, pair) as server:
        asyncio.run(job(server))


def test_tls_1_2_without_the_client_certificate_it_wants(run, authority, pair):
    tls = authority.server_context(pair, client_ca=authority.cacert, newest=ssl.TLSVersion.TLSv1_2)
    with http_server(tls=tls) as server, pytest.raises(LoadgenError, match=r"\(--cert and --key\)"):
        run(ask(target_of(server), ConnectOptions(cacert=authority.cacert)))


def test_a_client_certificate_that_is_missing_under_load_is_an_outcome_not_a_hang(run, authority, pair):
    with serving("http", authority, pair, client_ca=authority.cacert) as server:
        told = run(load(target_of(server), ConnectOptions(cacert=authority.cacert), count=1))
        (reply,) = told.replies
        assert reply.outcome in (Outcome.CONNECTION, Outcome.CONNECT)
        assert reply.detail
