import pytest

from loadgen.target import Target, TargetError, parse_target


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("localhost:8000", Target("http", "localhost", 8000)),
        ("http://h", Target("http", "h", 8000)),
        ("https://h:9", Target("http", "h", 9, tls=True)),
        ("http://h:8000/base/x/", Target("http", "h", 8000, base_path="/base/x")),
        ("http://h:8000/", Target("http", "h", 8000)),
        ("grpc://h", Target("grpc", "h", 8001)),
        ("grpc://h:8001/", Target("grpc", "h", 8001)),
        ("grpcs://h:443", Target("grpc", "h", 443, tls=True)),
        ("GRPC://H:1", Target("grpc", "h", 1)),
        ("http://[::1]:8000", Target("http", "::1", 8000)),
        ("[::1]:8000", Target("http", "::1", 8000)),
        ("  h:1\n", Target("http", "h", 1)),
        (f"http://{'a' * 63}.b", Target("http", f"{'a' * 63}.b", 8000)),
        (f"http://{'abc.' * 63}a", Target("http", f"{'abc.' * 63}a", 8000)),
        ("http://bücher.example:1", Target("http", "xn--bcher-kva.example", 1)),
        ("http://h/模", Target("http", "h", 8000, base_path="/%E6%A8%A1")),
        ("http://h/a%20b", Target("http", "h", 8000, base_path="/a%20b")),
        ("openai+http://h:8000/v1", Target("http", "h", 8000, base_path="/v1", dialect="openai")),
        ("openai+http://h:8000/v1/", Target("http", "h", 8000, base_path="/v1", dialect="openai")),
        ("openai+http://h:8000", Target("http", "h", 8000, base_path="/v1", dialect="openai")),
        ("openai+http://h:8000/", Target("http", "h", 8000, dialect="openai")),
        ("OpenAI+HTTP://[::1]/x/v2", Target("http", "::1", 8000, base_path="/x/v2", dialect="openai")),
        ("openai+https://h", Target("http", "h", 443, tls=True, base_path="/v1", dialect="openai")),
    ],
)
def test_every_form_becomes_one(text, target):
    assert parse_target(text) == target
    assert parse_target(target.url) == target


def test_a_bare_address_takes_the_protocol_asked_for():
    assert parse_target("h", protocol="grpc") == Target("grpc", "h", 8001)
    assert parse_target("h:8001", protocol="grpc").url == "grpc://h:8001"


def test_ipv6_stands_in_brackets():
    assert parse_target("grpc://[::1]:8001").authority == "[::1]:8001"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ftp://h", "unknown scheme 'ftp'"),
        ("openai+grpc://h", "unknown scheme 'openai+grpc'"),
        ("openai+http://", "no host"),
        ("http://", "no host"),
        ("", "no host"),
        ("http://h:0", "no port"),
        ("http://h:", "no port after ':'"),
        ("http:/h", "no port after ':'"),
        ("http://h:99999", "Port out of range"),
        ("http://h:abc", "Port"),
        ("http://u:p@h", "credentials"),
        ("http://h/x?y=1", "no place here"),
        ("http://h/x#y", "no place here"),
        ("http://h/a b", "spaces"),
        ("http://h\r\nX: y", "spaces"),
        ("grpc://h:8001/base", "gRPC has no base path; write grpc://h:8001"),
        ("http://[::1", "IPv6"),
        (f"http://{'a' * 64}.example:1", "between its dots stand 1 to 63 characters"),
        (f"grpc://{'a' * 64}", "between its dots stand 1 to 63 characters"),
        ("http://a..b:1", "between its dots stand 1 to 63 characters"),
        (f"http://{'abc.' * 63}ab", "at most 253 in all"),
    ],
)
def test_refused_in_one_line(text, says):
    with pytest.raises(TargetError) as caught:
        parse_target(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_scheme_at_odds_with_the_protocol_is_refused_in_words():
    with pytest.raises(TargetError, match="the scheme 'http' is not grpc; write grpc://h:8001"):
        parse_target("http://h:8001", protocol="grpc")


def test_an_openai_server_is_no_grpc_target():
    with pytest.raises(TargetError, match=r"the scheme 'openai\+http' is not grpc; write grpc://h:8001"):
        parse_target("openai+http://h:8001", protocol="grpc")


def test_a_password_is_not_repeated():
    with pytest.raises(TargetError) as caught:
        parse_target("http://user:hunter2@h")
    assert "hunter2" not in str(caught.value)
