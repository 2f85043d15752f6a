"""Field cases: what a run says when the server, the client or the person misbehaves.  Real sockets, a scripted server."""

import json
import signal
import time

import pyarrow as pa
import pytest

from loadgen.planfile import load_plan
from tests.support.cli import loadgen, spawn
from tests.support.kserve_mock import Mock, Model

CLOSED = """
name: t
kinds:
  k: {model: m, length: 4, timeout: 5s%s}
phases:
  - {name: warm, warmup: true, closed: {users: %d, requests: %d}}
  - {name: load, closed: {users: %d, requests: %d}}
"""


@pytest.fixture
def run(tmp_path):
    """Writes the profile, runs it against the mock, returns (answer, summary)."""

    def go(text, mock, *options):
        path = tmp_path / "p.yaml"
        path.write_text(text)
        out = tmp_path / f"run{len(list(tmp_path.glob('run*')))}"
        answer = loadgen("run", path, "--target", mock.target, "--out", out, "--json", "-q", *options)
        kept = json.loads((out / "summary.json").read_text())
        assert {key: answer.json[key] for key in kept} == {**kept, "run": answer.json["run"]}
        return answer, answer.json, out

    return go


def codes(summary):
    return {doubt["code"] for doubt in summary["doubts"]}


def test_quick_failures_do_not_flatter_the_percentiles(run):
    """Case 45: a storm of fast 429s beside slow answers."""

    def answer(n):
        return (0.05, 200, None) if n < 9 or n % 3 == 0 else (0.0, 429, "slow down")

    with Mock(answer) as mock:
        result, summary, _ = run(CLOSED % ("", 4, 8, 4, 120), mock)
    total = summary["total"]
    assert total["counts"]["ok"] + total["counts"]["rejected"] == 120
    assert 35 <= total["counts"]["ok"] <= 45
    assert total["latency_ns"]["n"] == total["counts"]["ok"]
    assert total["latency_ns"]["p50"] >= 50e6
    assert total["errors"]["rejected"]["n"] == total["counts"]["rejected"]
    assert total["errors"]["rejected"]["status"] == {"429": total["counts"]["rejected"]}
    assert total["errors"]["rejected"]["text"] == "slow down"
    assert (summary["valid"], result.code) == (False, 3)


def test_the_denominator_of_the_failure_rate_is_requests(run):
    """Case 46: 90 good and 10 bad are 10 %."""
    text = CLOSED % ("", 1, 1, 2, 100) + 'objectives: ["failure rate < 4%"]\n'
    with Mock(lambda n: (0.002, 500, "boom") if n > 2 and n % 10 == 0 else (0.002, 200, None)) as mock:
        result, summary, _ = run(text, mock)
    assert summary["total"]["counts"]["failed"] == 10
    [objective] = summary["slo"]
    assert (objective["observed"], objective["n"]) == (pytest.approx(0.10), 100)
    busy = "client_bound" in codes(summary)  # on a crowded machine: then nothing can be said of the server
    assert (objective["verdict"], result.code) == ("fail", 3 if busy else 1)


def test_a_server_that_dies_is_a_failed_run_not_an_empty_success(run):
    with Mock(lambda n: (0, 500, "gone") if n > 1 else (0, 200, None)) as mock:
        result, summary, _ = run(CLOSED % ("", 1, 1, 2, 50), mock)
    assert summary["total"]["counts"]["ok"] == 0
    assert summary["total"]["latency_ns"] == {
        k: 0 if k == "n" else None for k in summary["total"]["latency_ns"]
    }
    assert (summary["valid"], result.code) == (False, 3)


def test_requests_and_items_are_told_apart(run):
    """Case 27: with batch 8, items/s is eight times requests/s, and the rows say so."""
    with Mock() as mock:
        _, summary, out = run(CLOSED % (", batch: 8", 1, 4, 2, 40), mock)
    total = summary["total"]
    assert total["items_per_s"] == pytest.approx(8 * total["achieved_per_s"])
    table = pa.ipc.open_stream((out / "records.arrow").read_bytes()).read_all()
    assert set(table["items"].to_pylist()) == {8}
    text = loadgen("report", out).out
    assert "items/s" in text
    assert "requests/s" in text


def test_warm_up_is_in_no_figure(run):
    """Case 24: each of the 4 slots is cold once; only the warm-up meets that."""
    cold = []

    def answer(n):
        if n < 5:  # the first request alone, then one a user
            cold.append(n)
            return (0.4, 200, None)
        return (0.001, 200, None)

    with Mock(answer) as mock:
        _, summary, _ = run(CLOSED % ("", 4, 4, 4, 200), mock)
    assert len(cold) == 5
    assert summary["total"]["latency_ns"]["max"] < 300e6
    assert summary["total"]["counts"]["ok"] == 200
    assert summary["total"]["span_ns"] < 2e9
    warm = summary["phases"][0]
    assert (warm["measured"], warm["counts"]["ok"]) == (False, 4)
    assert warm["latency_ns"]["p50"] >= 400e6
    assert "short_warmup" not in codes(summary)
    assert summary["server"]["batch_sizes"] == {"1": 200}


class TwoInstances(Model):
    """A model of two instances."""

    def config(self, model):
        return {**super().config(model), "instance_group": [{"count": 2, "kind": "KIND_CPU"}]}


COLD = """
name: t
kinds: {k: {model: m, length: 4, timeout: 900ms}}
phases: [{name: load, closed: {users: 2, requests: 100}}]
"""


def test_the_cold_answer_of_each_instance_is_shown_apart_and_in_no_figure(run):
    """Case 21: the first request on each of 2 instances takes long (0.4 s here), later ones are quick."""

    def answer(n):
        return (0.4 if n < 2 else 0.001, 200, None)

    with Mock(answer, models={"m": TwoInstances()}) as mock:
        _, summary, out = run(COLD, mock)
        assert mock.requests == 102
    first = summary["first_each_ns"]["k"]
    assert len(first) == 2  # 2 instances, 2 cold answers
    assert min(first) >= 400e6
    assert summary["first_request_ns"]["k"] == first[0]
    counts = summary["total"]["counts"]
    assert (counts["ok"], counts["timeout"]) == (100, 0)
    assert summary["total"]["latency_ns"]["max"] < 200e6
    assert "k 4" in loadgen("report", out).out.partition("first request of each kind")[2]
    assert "(at once on 2 instances: 4" in " ".join(loadgen("report", out).out.split())


def test_an_instance_that_never_answers_is_told_and_does_not_end_the_run(run):
    with Mock(lambda n: (0.001, 503 if n == 1 else 200, "full"), models={"m": TwoInstances()}) as mock:
        _, summary, _ = run(COLD, mock)
    assert len(summary["first_each_ns"]["k"]) == 1
    assert summary["total"]["counts"]["ok"] == 100


def test_a_warm_up_shorter_than_the_concurrency_is_doubted(run):
    with Mock() as mock:
        _, summary, _ = run(CLOSED % ("", 1, 1, 4, 200), mock)
    assert "short_warmup" in codes(summary)


def test_a_server_that_gets_faster_all_along_is_said_to_drift(run):
    """Case 23: the service time falls from 50 to 10 ms over all of 400 requests; the warm-up ends long before."""

    def answer(n):
        return (0.05 * 0.996**n, 200, None)

    with Mock(answer) as mock:
        _, summary, _ = run(CLOSED % ("", 2, 2, 2, 400), mock)
    [doubt] = [doubt for doubt in summary["doubts"] if doubt["code"] == "drift"]
    assert "in the first third" in doubt["text"]
    assert doubt["hint"] == "warm up for longer"


def test_no_steady_window_is_looked_for_in_a_ramp(run):
    """The planned rates are in run.json: a mild ramp that no test of 120 arrivals could tell from one rate."""
    text = (
        "name: t\nkinds: {k: {model: m, length: 4}}\nphases:\n"
        "  - {name: flat, open: {rate: [{duration: 1s, at: 250/s}]}}\n"
        "  - {name: ramp, open: {rate: [{duration: 1s, from: 110/s, to: 130/s}]}}\n"
    )
    with Mock(lambda _: (0.0, 200, None)) as mock:
        _, summary, out = run(text, mock)
    told = json.loads((out / "run.json").read_text())["phases"]
    assert [phase["rates"] for phase in told] == [[[250.0, 250.0]], [[110.0, 130.0]]]
    flat, ramp = (phase["steady"] for phase in summary["phases"])
    assert flat["state"] not in ("not_constant", "too_little_data")
    assert (ramp["state"], ramp["detected"]) == ("not_constant", None)
    assert ramp["declared"]["n"] == summary["phases"][1]["counts"]["ok"]


def test_a_model_can_be_ready_while_the_server_is_not(run):
    """Case 20: the model's own readiness is what counts; both are written down."""
    with Mock(server_ready=False) as mock:
        _, summary, out = run(CLOSED % ("", 1, 1, 1, 5), mock)
    assert summary["total"]["counts"]["ok"] == 5
    server = json.loads((out / "run.json").read_text())["server"]
    assert (server["server_ready"], server["models"]["m"]["ready"]) == (False, True)


def test_a_model_that_becomes_ready_is_waited_for(run):
    model = Model(ready=False)
    with Mock(models={"m": model}) as mock:
        mock._loop.call_soon_threadsafe(lambda: mock._loop.call_later(0.5, setattr, model, "ready", True))
        _, summary, _ = run(CLOSED % ("", 1, 1, 1, 5), mock, "--wait", "20s")
    assert summary["total"]["counts"]["ok"] == 5


def test_one_request_is_a_result(run):
    """Cases 48 and 57: n is told, percentiles are the value itself, and the figure is doubted, not hidden."""
    once = CLOSED.replace("  - {name: warm, warmup: true, closed: {users: %d, requests: %d}}\n", "") % (
        "",
        1,
        1,
    )
    with Mock() as mock:
        answer, summary, _ = run(once, mock)
    latency = summary["total"]["latency_ns"]
    assert latency["n"] == 1
    assert latency["p50"] == latency["p99"] == latency["max"] > 0
    assert (answer.code, summary["valid"]) == (0, True)  # non-zero would mean that nothing was measured
    assert "few_samples" in codes(summary)
    assert summary["total"]["achieved_per_s"] == pytest.approx(1e9 / summary["total"]["span_ns"])


def test_a_window_shorter_than_a_request_still_reports_it(run):
    """Case 57: a request belongs to the phase in which it was due, and the span waits for it."""
    text = (
        CLOSED.partition("phases:")[0] % ""
        + "phases:\n  - {name: load, closed: {users: 1, duration: 50ms}}\n"
    )
    with Mock(lambda n: (0.3 if n else 0, 200, None)) as mock:
        _, summary, _ = run(text, mock)
    assert summary["total"]["counts"]["ok"] == 1
    assert summary["total"]["span_ns"] >= 300e6
    assert summary["total"]["achieved_per_s"] < 3.4


def test_concurrency_300_meets_no_hidden_cap(run):
    """Case 51: client libraries stop at 100 connections; here 300 users are 300 requests in flight."""
    with Mock(lambda n: (0.25, 200, None)) as mock:
        _, summary, _ = run(CLOSED % ("", 300, 300, 300, 600), mock)
    assert mock.most_in_flight == 300
    assert summary["client"]["max_in_flight"] == 300
    assert summary["total"]["counts"]["ok"] == 600


def test_a_rate_beyond_the_client_is_said(run):
    """Case 51: 400,000/s cannot be sent by one core; the run says so, from which rate on, and is not valid."""
    text = CLOSED.partition("phases:")[0] % "" + (
        "phases:\n  - {name: load, open: {arrivals: uniform, rate: [{duration: 500ms, at: 400000/s}]}}\n"
        "cap: {in_flight: 256, when_full: drop}\n"
    )
    with Mock() as mock:
        result, summary, _ = run(text, mock)
    counts = summary["total"]["counts"]
    assert counts["planned"] == 200_000
    assert counts["dropped"] > 0
    assert counts["tried"] + counts["dropped"] == 200_000
    assert summary["total"]["achieved_per_s"] < 0.8 * summary["total"]["offered_per_s"]
    assert summary["client"]["loop_lag_ns"]["n"] > 0
    texts = {doubt["code"]: doubt["text"] for doubt in summary["doubts"]}
    assert f"{counts['dropped']} of 200000 requests" in texts["dropped"]
    assert (
        "figures are not to be believed" in texts["client_bound"]
        or "at none of its rates" in texts["client_bound"]
    )
    assert (summary["valid"], result.code) == (False, 3)


def test_counters_moved_by_others_are_noticed(run):
    with Mock() as mock:

        def answer(n):
            mock.extra_counts += 3
            return (0, 200, None)

        mock.answer = answer
        _, summary, _ = run(CLOSED % ("", 2, 4, 2, 50), mock)
    assert "other_clients" in codes(summary)


def test_a_server_without_statistics_or_config_is_measured_all_the_same(run):
    with Mock(models={"m": Model(has_config=False)}, statistics=False) as mock:
        _, summary, _ = run(CLOSED % ("", 2, 4, 2, 150), mock)
    assert summary["total"]["counts"]["ok"] == 150
    assert summary["server"]["batch_sizes"] is None or summary["server"]["batch_sizes"] == {}
    assert summary["server"]["mean_batch"] is None
    assert "no_server_statistics" in codes(summary)


def test_the_run_folder_says_what_was_asked(run):
    with Mock() as mock:
        _, _, out = run(CLOSED % ("", 1, 1, 1, 5), mock, "--seed", "11")
    info = json.loads((out / "run.json").read_text())
    assert info["seed"] == 11
    assert info["status"] == "finished"
    assert info["profile"]["text"].startswith("\nname: t")


LONG = (
    CLOSED.partition("phases:")[0] % ""
    + "phases:\n  - {name: load, open: {arrivals: uniform, rate: [{duration: 60s, at: 100/s}]}}\n"
)


def wait_for(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_loses_nothing(tmp_path, number):
    """Case 58: the first signal ends the sending, everything is written and reported, exit code 130."""
    path, out = tmp_path / "p.yaml", tmp_path / "run"
    path.write_text(LONG)
    with Mock() as mock:
        process = spawn("run", path, "--target", mock.target, "--out", out)
        wait_for(lambda: mock.requests > 150)
        process.send_signal(number)
        text, err = process.communicate(timeout=20)
        sent = mock.requests - 1  # less the first request alone
    assert process.returncode == 130, err
    summary = json.loads((out / "summary.json").read_text())
    assert json.loads((out / "run.json").read_text())["status"] == "interrupted"
    counts = summary["total"]["counts"]
    assert counts["planned"] == 6000
    assert counts["ok"] == counts["sent"] == sent
    assert "interrupted" in codes(summary)
    assert "P99" in text
    assert "Traceback" not in err
    assert (out / "report.html").exists()


def test_a_second_interrupt_quits_at_once_and_records_stay_readable(tmp_path):
    path, out = tmp_path / "p.yaml", tmp_path / "run"
    path.write_text(LONG.replace("timeout: 5s", "timeout: 50s"))
    with Mock(lambda n: (0.0 if n < 120 else None, 200, None)) as mock:
        process = spawn("run", path, "--target", mock.target, "--out", out)
        wait_for(lambda: mock.requests > 200)
        process.send_signal(signal.SIGINT)
        wait_for(lambda: "interrupted" in process.stderr.readline())
        process.send_signal(signal.SIGINT)
        started = time.monotonic()
        process.communicate(timeout=10)
    assert process.returncode == 130
    assert time.monotonic() - started < 1.5
    answer = loadgen("report", out, "--json")
    assert answer.json["run"]["status"] == "interrupted"
    assert answer.json["total"]["counts"]["ok"] == 119
    assert answer.json["total"]["counts"]["planned"] == 6000


def test_a_kill_loses_at_most_a_second(tmp_path):
    path, out = tmp_path / "p.yaml", tmp_path / "run"
    path.write_text(LONG)
    with Mock() as mock:
        process = spawn("run", path, "--target", mock.target, "--out", out)
        wait_for(lambda: mock.requests > 250)
        process.kill()
        process.communicate(timeout=10)
    answer = loadgen("report", out, "--json")
    assert answer.json["run"]["status"] == "killed"
    assert "other_clients" not in codes(answer.json)
    assert 140 <= answer.json["total"]["counts"]["ok"] <= 260
    assert answer.json["total"]["latency_ns"]["p99"] > 0


def test_a_large_process_starts_its_first_phase_on_time(run):
    """Collecting garbage among millions of objects takes longer than the lead of a phase: it is done before."""
    ballast = [{"n": n} for n in range(1_500_000)]
    with Mock(lambda _: (0.001, 200, None)) as mock:
        _, summary, _ = run(CLOSED % ("", 2, 2, 2, 20), mock)
    assert len(ballast) == 1_500_000
    assert summary["phases"][0]["lag_ns"]["max"] < 60e6


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_sixteen_bit_floats_go_as_binary_over_http(run, datatype):
    """Case 4: FP16 and BF16 have no JSON form; the binary extension is chosen without being asked for."""
    bodies = []
    with Mock(models={"m": Model(datatype=datatype)}) as mock:
        mock.bodies = bodies
        _, summary, _ = run(CLOSED % ("", 1, 1, 1, 5), mock)
        sent = [headers for headers in mock.headers if "Inference-Header-Content-Length" in headers]
    assert summary["total"]["counts"]["ok"] == 5
    assert len(sent) == len(bodies) == 7
    for headers, body in zip(sent, bodies, strict=True):
        size = int(headers["Inference-Header-Content-Length"])
        [tensor] = json.loads(body[:size])["inputs"]
        assert (tensor["datatype"], tensor["parameters"]["binary_data_size"]) == (datatype, 8)
        assert "data" not in tensor
        assert len(body) - size == 8  # four values of two bytes


def test_a_run_tells_how_bursty_its_plan_was(run, tmp_path):
    """Issue: a trace with equal stamps fires bursts.  Here three, one and two at a time, a tenth of a second apart."""
    (tmp_path / "t.csv").write_text("t,in\n" + "".join(f"{t},4\n" for t in (0, 0, 0, 1, 2, 2)))
    text = (
        "name: t\nkinds: {k: {model: m, length: 4}}\nphases:\n  - {name: warm, warmup: true, closed: {users: 2, requests: 4}}\n"
        "  - {name: replay, trace: {file: t.csv, columns: {time: t, input: in}, unit: s, speed: 10}}\n"
    )
    with Mock(lambda _: (0.0, 200, None)) as mock:
        result, summary, out = run(text, mock)
    assert result.code in (0, 3), result.err
    warm, replay = summary["phases"]
    assert warm["plan"] is None
    assert replay["counts"]["sent"] == 6
    assert replay["plan"]["gap_cv"] == pytest.approx(1.5**0.5)
    assert replay["plan"]["dispersion"] == pytest.approx(244 / 114)
    assert replay["plan"]["largest_burst"] == 3
    told = json.loads((out / "run.json").read_text())["phases"][1]
    assert (told["arrivals"]["share_an_instant"], told["arrivals"]["bin_ns"]) == (5, 12_000_000)
    assert told["plan"]["rows_kept"] == 6  # the trace's own facts stay where they were


@pytest.mark.parametrize("workers", [1, 2])
def test_a_saved_plan_is_sent_arrival_by_arrival(run, tmp_path, workers):
    """Issue: the plan can be saved as a file and replayed; the seed it was made with is the run's."""
    text = (
        "name: t\nkinds: {a: {model: m, length: {uniform: {min: 1, max: 90}}}, b: {model: m, length: 3}}\n"
        "phases: [{name: go, open: {rate: [{duration: 1s, at: 80/s}]}}]\n"
    )
    (tmp_path / "s.yaml").write_text(text)
    shown = loadgen("profile", "show", tmp_path / "s.yaml", "--seed", 9, "--save", tmp_path / "plan.arrow")
    assert shown.code == 0, shown.err
    saved, _ = load_plan(tmp_path / "plan.arrow", ("a", "b"))
    with Mock(lambda _: (0.0, 200, None)) as mock:
        result, _, out = run(text, mock, "--plan", tmp_path / "plan.arrow", "--workers", workers)
    assert result.code in (0, 3), result.err
    info, phase = json.loads((out / "run.json").read_text()), saved.phases[0]
    parts = [pa.ipc.open_stream(path.read_bytes()).read_all() for path in out.glob("records*.arrow")]
    rows = sorted((row for part in parts for row in part.to_pylist()), key=lambda row: row["seq"])
    assert info["seed"] == 9
    assert [row["due_ns"] - info["phases"][0]["start_ns"] for row in rows] == phase.due_ns.tolist()
    assert [row["kind"] for row in rows] == [saved.kinds[place] for place in phase.kind]
    assert [row["length"] for row in rows] == phase.length.tolist()
