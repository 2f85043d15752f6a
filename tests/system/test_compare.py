"""`loadgen compare`: of run folders, and live between two servers."""

import json
import signal
import time

import pytest

from tests.support.cli import loadgen, spawn
from tests.support.kserve_mock import Mock
from tests.support.runs import MS, build, row

PROFILE = """
name: p
kinds: {k: {model: m, length: 4}}
phases:
  - {name: load, open: {arrivals: poisson, rate: [{duration: 700ms, at: 200/s}]}}
"""


@pytest.fixture
def profile(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text(PROFILE)
    return path


def delayed(seconds):
    """A server that answers after so long."""
    return Mock(lambda _: (seconds, 200, None))


def test_two_servers_of_different_delay(tmp_path, profile):
    out = tmp_path / "out"
    with delayed(0.002) as fast, delayed(0.012) as slow:
        said = loadgen("compare", "--live", profile, "--target", fast.target, "--target", slow.target, "--rounds", 3,
                       "--out", out, "--figure", "latency p50", "--json", "-q")  # fmt: skip
    assert said.code == 1, said.err
    (pair,) = said.json["pairs"]
    (one,) = pair["figures"]
    assert (said.json["conclusion"], one["change"]) == ("worse", "worse")
    assert one["effect"]["difference"]["value"] == pytest.approx(10 * MS, rel=0.3)
    journal = json.loads((out / "comparison.json").read_text())
    assert journal["finished"] == ["01-1", "01-2", "02-2", "02-1", "03-1", "03-2"]  # A B B A A B
    runs = [json.loads((out / "rounds" / name / "run.json").read_text()) for name in journal["finished"]]
    seeds = [run["seed"] for run in runs]
    assert seeds[0] == seeds[1] != seeds[2] == seeds[3]
    again = loadgen("compare", out, "--figure", "latency p50")
    assert again.code == 1
    assert "latency p50" in again.out
    page = (out / "compare.html").read_text()
    assert "quantiles-1" in page
    assert "http://127" in page


def test_an_interrupted_comparison_keeps_its_rounds_and_goes_on(tmp_path, profile):
    out = tmp_path / "out"
    with delayed(0.002) as a, delayed(0.002) as b:
        child = spawn("compare", "--live", profile, "--target", a.target, "--target", b.target, "--rounds", 3, "--out",
                      out, "--figure", "failure rate", "--points", "5", "--json")  # fmt: skip
        end = time.monotonic() + 30
        while not (out / "rounds" / "02-2").exists() and time.monotonic() < end:
            time.sleep(0.05)
        time.sleep(0.5)
        child.send_signal(signal.SIGINT)
        text, err = child.communicate(timeout=30)
        assert child.returncode == 130, err
        assert json.loads(text)["rounds"] == 1
        assert json.loads((out / "comparison.json").read_text())["status"] == "interrupted"
        before = (out / "rounds" / "01-1" / "records.arrow").stat().st_mtime_ns
        said = loadgen(
            "compare", out, "--resume", "--figure", "failure rate", "--points", "5", "--json", "-q"
        )
    assert said.code == 0, said.err
    assert said.json["rounds"] == 3
    assert (out / "rounds" / "01-1" / "records.arrow").stat().st_mtime_ns == before


def test_an_interrupt_in_the_first_round_keeps_its_runs(tmp_path, profile):
    out = tmp_path / "out"
    profile.write_text(PROFILE.replace("700ms", "2s"))
    with delayed(0.002) as a, delayed(0.002) as b:
        child = spawn("compare", "--live", profile, "--target", a.target, "--target", b.target, "--out", out)
        end = time.monotonic() + 30
        while not (out / "rounds" / "01-2").exists() and time.monotonic() < end:
            time.sleep(0.05)
        time.sleep(0.5)
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=30)
    assert child.returncode == 130, err
    assert "--resume goes on" in err
    assert json.loads((out / "comparison.json").read_text())["finished"] == ["01-1"]
    assert (out / "rounds" / "01-1" / "records.arrow").exists()


def test_two_profiles_may_differ(tmp_path, profile):
    other = tmp_path / "q.yaml"
    other.write_text(PROFILE.replace("name: p", "name: q").replace("200/s", "100/s"))
    with delayed(0.002) as server:
        said = loadgen("compare", "--live", profile, other, "--target", server.target, "--rounds", 2, "--out",
                       tmp_path / "out", "--figure", "requests/s", "--json", "-q")  # fmt: skip
    (pair,) = said.json["pairs"]
    assert not pair["refused"]
    assert pair["figures"][0]["effect"]["ratio"]["value"] == pytest.approx(0.5, rel=0.15)


def test_two_configurations_of_a_model(tmp_path, profile):
    from tests.system.test_sweep import Configured

    with delayed(0.002) as server:
        server.control = "explicit"
        server.models = {"m": Configured(server)}
        said = loadgen("compare", "--live", profile, "--target", server.target, "--config", "{delay: 0ms}", "--config",
                       "{delay: 20ms}", "--rounds", 1, "--out", tmp_path / "out", "--json", "-q")  # fmt: skip
        assert said.code in (0, 1, 3), said.err
        (pair,) = said.json["pairs"]
        assert [one["what"] for one in pair["differences"] if one["aspect"] == "model"] == [
            "m dynamic_batching.max_queue_delay_microseconds"
        ]
        assert server.loads[-1][1] is None  # given back as it was


def test_a_model_that_cannot_be_given_back_is_named(tmp_path, profile):
    from tests.system.test_sweep import Configured

    class Fixed(Configured):
        """No explicit control any more once both configurations were loaded."""

        def config(self, model):
            if len(self.mock.loads) > 2:  # its own, and both
                self.mock.control = None
            return super().config(model)

    with delayed(0.002) as server:
        server.control = "explicit"
        server.models = {"m": Fixed(server)}
        said = loadgen("compare", "--live", profile, "--target", server.target, "--config", "{delay: 0ms}", "--config",
                       "{delay: 20ms}", "--rounds", 1, "--out", tmp_path / "out", "--json")  # fmt: skip
    assert said.code in (0, 1, 3), said.err
    assert "'m' at http://127.0.0.1" in said.err
    assert "is not as it was found" in said.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--live"], "exactly one of two profiles, two --target, two --config"),
        (
            [
                "--live",
                "--target",
                "http://127.0.0.1:1",
                "--target",
                "http://127.0.0.1:2",
                "--config",
                "{delay: x}",
            ],
            "delay",
        ),
        (
            ["--live", "--target", "http://127.0.0.1:1", "--target", "http://127.0.0.1:2", "--rounds", "0"],
            "rounds",
        ),
        (["--target", "http://127.0.0.1:1"], "for --live"),
        ([], "nothing to compare it with"),
        (["--worth", "3"], "3%"),
        (["--figure", "nonsense"], "nonsense"),
        (["--resume"], "not the folder of a live comparison"),
    ],
)
def test_refused_in_one_line(profile, words, said):
    answer = loadgen("compare", profile, *words)
    assert answer.code == 2
    assert said in answer.err


def test_exit_codes_of_run_folders(tmp_path):
    def run(name, ms, **over):
        rows = [row(i * 10 * MS, round(ms * (1 + 0.1 * (i % 7)) * MS)) for i in range(1000)]
        return build(tmp_path / name, rows, **over)

    a, alike, slow = run("a", 10), run("b", 10), run("c", 12)
    other = run("d", 10, profile={"name": "x", "text": "kinds: {}", "sha256": "1" * 64})
    p50 = ("--figure", "latency p50")
    assert loadgen("compare", a, alike, *p50).code == 0
    worse = loadgen("compare", a, slow, *p50, "--html", tmp_path / "page.html")
    assert (worse.code, "worse: latency p50 +20 %" in worse.out) == (1, True), worse.out
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    assert loadgen("compare", slow, a, *p50).code == 0
    assert loadgen("compare", a, slow, *p50, "--worth", "30%").code == 0
    refused = loadgen("compare", a, other, *p50)
    assert (refused.code, "not comparable: profiles differ in kinds" in refused.out) == (3, True), refused.out
    assert loadgen("compare", a, other, *p50, "--force").code == 0
    few = build(tmp_path / "few", [row(0)])
    assert loadgen("compare", a, few, *p50).code == 3
    assert loadgen("compare", a, tmp_path / "none").code == 2


def test_a_server_that_is_not_there_leaves_nothing(tmp_path, profile):
    dead = ("--target", "http://127.0.0.1:9", "--target", "http://127.0.0.1:9")
    said = loadgen("compare", "--live", profile, *dead, "--out", tmp_path / "out", "-q")
    assert said.code == 2
    assert "127.0.0.1:9" in said.err
    assert not (tmp_path / "out").exists()
