"""Builds small run folders by hand, through the same writer a real run uses."""

import json
from pathlib import Path

from loadgen.records import Outcome
from loadgen.runfile import RunFolder

MS = 10**6
S = 10**9


def phase(name="steady", **over):
    base = {
        "name": name, "loop": "open", "measured": True, "duration_ns": 10 * S, "users": 0, "planned": None,
        "start_ns": 0, "load_end_ns": 10 * S, "end_ns": 10 * S, "max_in_flight": 4, "cpu_ns": 100 * MS,
        "loop_lag_ns": {"n": 100, "p50": 50_000, "p99": 200_000, "max": 400_000}, "cap_waits": 0,
        "requests": None, "conn_waits": 0, "resent": 0, "reconnects": 0,
    }  # fmt: skip
    return base | over


def info(phases, **over):
    base = {
        "format": 1, "id": "20260102T030405-test", "started_at": "2026-01-02T03:04:05Z", "status": "finished",
        "seed": 7, "target": "http://127.0.0.1:8000", "command": ["loadgen", "run", "test.yaml"],
        "profile": {"name": "test", "text": "name: test\n", "sha256": "0" * 64},
        "kinds": [{"name": "short", "model": "m", "version": "1", "batch": 1, "weight": 1.0,
                   "timeout_ns": 5 * S, "variants": 8}],
        "cap": {"in_flight": None, "when_full": "wait"}, "objectives": [], "phases": phases, "server": {},
        "client": {"host": "here", "cores": 2, "python": "3.11", "workers": 1},
        "first_request_ns": {"short": 42 * MS}, "doubts": [],
    }  # fmt: skip
    return base | over


def row(due, service=10 * MS, lag=0, *, phase=0, kind=0, outcome=Outcome.OK, **over):
    """One request: times in ns; `service=None` was never sent and ended at its due time plus lag."""
    sent = -1 if service is None else due + lag
    done = due + lag + (service or 0)
    base = {"phase": phase, "kind": kind, "due_ns": due, "sent_ns": sent, "first_ns": -1 if sent < 0 else done,
            "done_ns": done, "length": -1, "items": 1, "bytes_out": 100, "bytes_in": 50,
            "outcome": int(outcome), "status": 200 if outcome == Outcome.OK else 0, "detail": None}  # fmt: skip
    return base | over


def steady(n=1000, *, span=10 * S, start=0, **over):
    """`n` rows evenly over `span`."""
    return [row(start + i * span // n, **over) for i in range(n)]


def running(name="steady", **over):
    """A phase as run.json shows it until it has drained: of a killed run, for ever."""
    never = {
        "start_ns": None,
        "load_end_ns": None,
        "end_ns": None,
        "max_in_flight": 0,
        "cpu_ns": 0,
        "loop_lag_ns": None,
    }
    return phase(name, **(never | over))


def beat(t_ns, due, ended, **over):
    """A heartbeat of a sender: `due` requests so far, `ended` of them; the others are in flight."""
    return {
        "t_ns": t_ns, "phase": 0, "start_ns": 0, "due": due, "sent": due, "ended": ended, "in_flight": due - ended,
        "waiting": 0, "oldest_due_ns": None, "cap_waits": 0, "max_in_flight": 4,
    } | over  # fmt: skip


def build(path: Path, rows, phases=None, server=(), facts=None, beats=(), **over) -> Path:
    """Writes the run folder and returns its path; `server` holds snapshot lines, `facts` run.json's "server".

    `beats` are the last heartbeats, one a sender.
    """
    phases = [phase(planned=len(rows))] if phases is None else phases
    path.mkdir(parents=True, exist_ok=True)
    folder = RunFolder(path, info(phases, server=facts or {}, **over))
    writer = folder.writer()
    for seq, fields in enumerate(rows):
        writer.append(seq=seq, **fields)
    for line in server:
        folder.snapshot(line)
    writer.close()
    assert writer.error is None
    for worker, last in enumerate(beats):
        lines = [json.dumps(last | {"t_ns": 0, "due": 0, "ended": 0}), json.dumps(last), '{"t_ns": 99']
        (path / (f"progress-{worker}.jsonl" if worker else "progress.jsonl")).write_text("\n".join(lines))
    return path


def statistics(
    batches, *, model="m", version="1", queue_ns=2 * MS, compute_ns=5 * MS, requests=None, fail=0, hits=0
):
    """One model's statistics as Triton's HTTP endpoint tells them, cumulative; `batches` is {size: executions}."""
    items = sum(size * n for size, n in batches.items())
    requests = items if requests is None else requests

    def part(count, ns):
        return {"count": count, "ns": count * ns}

    return {
        "name": model, "version": version, "last_inference": 1, "inference_count": items,
        "execution_count": sum(batches.values()),
        "inference_stats": {
            "success": part(requests, queue_ns + compute_ns), "fail": part(fail, 0),
            "queue": part(requests, queue_ns), "compute_input": part(requests, compute_ns // 10),
            "compute_infer": part(requests, compute_ns * 8 // 10),
            "compute_output": part(requests, compute_ns // 10),
            "cache_hit": part(hits, 0), "cache_miss": part(0, 0),
        },
        "batch_stats": [
            {"batch_size": size, "compute_input": part(n, compute_ns // 10),
             "compute_infer": part(n, compute_ns * 8 // 10), "compute_output": part(n, compute_ns // 10)}
            for size, n in sorted(batches.items())
        ],
    }  # fmt: skip


def window(before, after, *, phase="steady", model="m", version="1", t_ns=0):
    """The two lines of server.jsonl around a phase."""
    return [
        {"t_ns": t_ns, "phase": phase, "at": at, "model": model, "version": version, "stats": stats}
        for at, stats in (("before", before), ("after", after))
    ]


def read_json(path: Path):
    return json.loads(path.read_text(encoding="utf-8"))
