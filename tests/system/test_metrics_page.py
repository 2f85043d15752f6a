"""A metrics page that is asked for and cannot be read: said before the load, and by the run's figures."""

import http.server
import json
import threading
from contextlib import contextmanager

import pytest

from tests.support.cli import loadgen
from tests.support.kserve_mock import Mock

PROFILE = """
name: t
kinds: {k: {model: m, length: 4, timeout: 5s}}
phases: [{name: load, open: {arrivals: uniform, rate: [{duration: 5s, at: 20/s}]}}]
"""
SHORT = PROFILE.replace("5s, at", "300ms, at")
PAGE = '# HELP x\nnv_inference_pending_request_count{model="m",version="1"} 3\n'


@contextmanager
def page(answer):
    """`answer(n)` is the n-th (status, text); None closes without any."""
    asked = iter(range(10**6))

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            told = answer(next(asked)) if self.path == "/metrics" else (404, "")
            if told is None:
                self.close_connection = True
                return
            self.send_response(told[0])
            self.send_header("content-length", str(len(told[1])))
            self.end_headers()
            self.wfile.write(told[1].encode())

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def measured(tmp_path, url, profile=SHORT):
    path = tmp_path / "p.yaml"
    path.write_text(profile)
    with Mock(lambda _: (0.001, 200, None)) as mock:
        answer = loadgen(
            "run", path, "--target", mock.target, "--metrics", url, "--out", tmp_path / "r", "--json"
        )
    summary = answer.json
    return (
        answer.err.splitlines(),
        summary["server"]["metrics"],
        {d["code"]: d["text"] for d in summary["doubts"]},
    )


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ((404, "no"), "status 404"),
        ((200, "<!doctype html>\n<title>Log in</title>\n<p>Hello you</p>"), "no page of metrics"),
        ((200, ""), "no page of metrics"),
        ((200, "vllm:num_requests_running 4.0\n"), "none of the figures"),
        ((503, PAGE), "status 503"),
        (None, ""),
    ],
)
def test_a_page_that_cannot_be_read_is_said_before_the_load_and_after(tmp_path, answer, why):
    with page(lambda _: answer) as url:
        err, told, doubts = measured(tmp_path, url)
    [said] = [line for line in err if line.startswith("warning: ")]
    assert url in said
    assert why in said
    assert err.index(said) < next(n for n, line in enumerate(err) if line.startswith("first request"))
    assert (told["url"], told["failed"]) == (f"{url}/metrics", told["looks"])
    assert why in told["why"]
    assert url in doubts["no_metrics"]


def test_nobody_at_the_page(tmp_path):
    with page(lambda _: (200, PAGE)) as url:
        pass
    err, told, doubts = measured(tmp_path, url)
    assert "refused" in next(line for line in err if line.startswith("warning: "))
    assert ("refused" in told["why"], "no_metrics" in doubts) == (True, True)


def test_a_page_that_can_be_read_has_no_doubt_however_short_the_run(tmp_path):
    with page(lambda _: (200, PAGE)) as url:
        err, told, doubts = measured(tmp_path, url, SHORT.replace("300ms", "1s"))
    assert not [line for line in err if line.startswith("warning: ")]
    assert {k: told[k] for k in ("failed", "why")} == {"failed": 0, "why": None}
    assert not {"no_metrics", "metrics_gaps"} & set(doubts)
    watched = json.loads((tmp_path / "r" / "watch.jsonl").read_text().splitlines()[0])
    assert list(watched["metrics"].values()) == [3.0]


def test_a_page_that_ends_in_the_middle(tmp_path):
    """The first answer is the look before the load, the second the one at its start."""
    with page(lambda n: (200, PAGE) if n < 2 else (500, "gone")) as url:
        err, told, doubts = measured(tmp_path, url, PROFILE)
    assert not [line for line in err if line.startswith("warning: ")]
    assert told["looks"] - told["failed"] <= 1
    assert 1 <= told["failed"] <= told["looks"] <= 4
    assert "status 500" in told["why"]
    assert ("metrics_gaps" in doubts) == (told["failed"] < told["looks"])
    assert {"metrics_gaps", "no_metrics"} & set(doubts)
