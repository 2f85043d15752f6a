"""TLS, headers and proxies as a person gives them to `loadgen run`: control plane and load alike."""

import json

import pytest

from tests.support.cli import loadgen
from tests.support.kserve_mock import Mock
from tests.support.tls import Authority

PROFILE = """
name: t
kinds: {k: {model: m, length: 4}}
phases:
  - {name: load, closed: {users: 2, requests: 120}}
"""


@pytest.fixture
def profile(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text(PROFILE)
    return path


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_certificate_of_ones_own(profile, tmp_path, authority, workers):
    pair = authority.issue("server")
    with Mock(tls=authority.server_context(pair)) as mock:
        refused = loadgen(
            "run", profile, "--target", mock.target, "--out", tmp_path / "a", "--workers", workers
        )
        assert (refused.code, len(refused.error_lines)) == (2, 1)
        assert "--cacert" in refused.err
        assert mock.requests == 0
        for options in (["--cacert", authority.cacert], ["--insecure"]):
            out = tmp_path / f"run{len(options)}"
            answer = loadgen(
                "run",
                profile,
                "--target",
                mock.target,
                "--out",
                out,
                "--json",
                "--workers",
                workers,
                *options,
            )
            assert answer.json["total"]["counts"]["ok"] == 120


@pytest.mark.parametrize("workers", ["1", "2"])
def test_headers_go_with_every_request_and_into_no_file(profile, tmp_path, workers):
    with Mock() as mock:
        options = [
            "-H",
            "Authorization: Bearer s3cret-token",
            "--header",
            "X-Team: blue",
            "--workers",
            workers,
        ]
        answer = loadgen("run", profile, "--target", mock.target, "--out", tmp_path / "run", *options)
    assert answer.code in (0, 3), answer
    assert len(mock.headers) > 125
    assert {h.get("Authorization") for h in mock.headers} == {"Bearer s3cret-token"}
    assert {h.get("X-Team") for h in mock.headers} == {"blue"}
    written = list((tmp_path / "run").iterdir())
    assert len(written) >= 4
    assert not any(b"s3cret-token" in path.read_bytes() for path in written)
    assert "s3cret-token" not in answer.out + answer.err
    command = json.loads((tmp_path / "run" / "run.json").read_text())["command"]
    assert any("Authorization: [redacted]" in word for word in command)


def test_a_header_that_is_none_is_refused_without_showing_it(profile):
    answer = loadgen("run", profile, "--target", "http://127.0.0.1:9", "-H", "s3cret-token")
    assert (answer.code, len(answer.error_lines)) == (2, 1)
    assert "s3cret-token" not in answer.err


def test_proxies_of_the_environment_are_ignored_and_the_report_says_so(profile, tmp_path, monkeypatch):
    """Case 15: a load test must not measure a proxy."""
    for name in ("http_proxy", "HTTPS_PROXY", "all_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with Mock() as mock:
        answer = loadgen("run", profile, "--target", mock.target, "--out", tmp_path / "run")
    assert "proxies ignored: HTTPS_PROXY, all_proxy, grpc_proxy, http_proxy" in " ".join(answer.out.split())
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    assert set(info["client"]["proxies_ignored"]) == {"http_proxy", "HTTPS_PROXY", "all_proxy", "grpc_proxy"}


def test_the_reference_transport_measures_the_same_thing(profile, tmp_path):
    with Mock(lambda _: (0.02, 200, None)) as mock:
        summaries = {
            name: loadgen(
                "run",
                profile,
                "--target",
                mock.target,
                "--out",
                tmp_path / name,
                "--json",
                "--transport",
                name,
            ).json
            for name in ("wire", "reference")
        }
    for summary in summaries.values():
        assert summary["total"]["counts"]["ok"] == 120
        assert 20e6 <= summary["total"]["latency_ns"]["p50"] < 35e6
    assert (
        summaries["wire"]["client"]["cpu_ns_per_request"]
        < summaries["reference"]["client"]["cpu_ns_per_request"]
    )


@pytest.mark.parametrize("given", ["%s", "%s/", "%s//"])
def test_a_base_path_is_kept_for_control_and_load(profile, tmp_path, given):
    """Case 12: servers behind a gateway live under a path."""
    with Mock(base="/serving/x") as mock:
        answer = loadgen("run", profile, "--target", given % mock.target, "--out", tmp_path / "r", "--json")
        assert answer.json["total"]["counts"]["ok"] == 120
        assert mock.requests == 121
        bare = loadgen("run", profile, "--target", f"localhost:{mock.port}", "--out", tmp_path / "s")
    assert (bare.code, len(bare.error_lines)) == (2, 1)


def test_a_seed_of_ones_own_reaches_the_first_request_too(profile, tmp_path):
    bodies = []
    with Mock() as mock:
        mock.bodies = bodies
        for seed in ("1", "2", "1"):
            loadgen(
                "run", profile, "--target", mock.target, "--out", tmp_path / f"r{len(bodies)}", "--seed", seed
            )
    first = bodies[:: len(bodies) // 3]
    assert first[0] == first[2] != first[1]
