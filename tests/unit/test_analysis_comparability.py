"""What speaks against comparing two runs."""

import pytest

from loadgen.analysis.comparability import Aspect, Severity, comparability, same_plan, side_of
from loadgen.lab.model_files import model_files
from loadgen.records import LoadgenError, Outcome
from tests.support.runs import MS, build, info, row, steady

PROFILE = {
    "name": "test",
    "text": "name: test\nkinds: {k: {model: m}}\nobjectives: [latency p99 < 1s]\n",
    "sha256": "0" * 64,
}


def side(path, **over):
    return side_of(build(path, over.pop("rows", steady()), **({"profile": PROFILE} | over)))


def found(a, b):
    return {(one.aspect, one.severity, one.what) for one in comparability(a, b)}


def test_alike(tmp_path):
    a, b = side(tmp_path / "a"), side(tmp_path / "b")
    assert comparability(a, b) == ()
    assert same_plan(a, b)


def test_only_what_is_sent_counts_of_a_profile(tmp_path):
    a = side(tmp_path / "a")
    other = PROFILE | {
        "text": PROFILE["text"].replace("1s", "2s").replace("name: test", "name: x"),
        "sha256": "1" * 64,
    }
    assert comparability(a, side(tmp_path / "b", profile=other)) == ()
    heavier = PROFILE | {
        "text": "kinds: {k: {model: m, length: 8}}\ncap: {in_flight: 3}\n",
        "sha256": "2" * 64,
    }
    assert found(a, side(tmp_path / "c", profile=heavier)) == {
        (Aspect.PROFILE, Severity.REFUSE, "kinds"), (Aspect.PROFILE, Severity.REFUSE, "cap")}  # fmt: skip


def test_target_seed_model_and_machine(tmp_path):
    client = info([])["client"]
    a = side(
        tmp_path / "a",
        facts={"name": "triton", "models": {"m": {"version": "1", "config": {"max_batch_size": 4}}}},
    )
    b = side(tmp_path / "b", seed=8, target="http://127.0.0.1:9", client=client | {"host": "there", "workers": 2},
             facts={"name": "triton", "models": {"m": {"version": "1", "config": {"max_batch_size": 8}}}})  # fmt: skip
    assert found(a, b) == {
        (Aspect.TARGET, Severity.NOTE, "target"), (Aspect.SEED, Severity.NOTE, "seed"),
        (Aspect.MODEL, Severity.NOTE, "m max_batch_size"), (Aspect.MACHINE, Severity.WARN, "host"),
        (Aspect.CLIENT, Severity.WARN, "workers")}  # fmt: skip
    assert not same_plan(a, b)
    assert [one.severity for one in comparability(a, b)][:2] == [Severity.WARN, Severity.WARN]


def test_another_file_of_the_model(tmp_path):
    (tmp_path / "m" / "1").mkdir(parents=True)
    weights = tmp_path / "m" / "1" / "model.onnx"
    sides = []
    for name in ("first", "other"):
        weights.write_text(name)
        sides.append(side(tmp_path / name, facts={"models": {"m": {"files": model_files(tmp_path / "m")}}}))
    assert found(*sides) == {(Aspect.MODEL, Severity.NOTE, "m/1/model.onnx")}
    weights.write_text("other")
    assert (
        found(
            sides[1],
            side(tmp_path / "again", facts={"models": {"m": {"files": model_files(tmp_path / "m")}}}),
        )
        == set()
    )


def test_not_valid_interrupted_and_late(tmp_path):
    a = side(tmp_path / "a")
    bad = [{"code": "client_bound", "text": "the client was full", "hint": "", "invalidates": True}]
    assert found(a, side(tmp_path / "b", doubts=bad)) == {(Aspect.NOT_VALID, Severity.REFUSE, "client_bound")}
    late = side(tmp_path / "c", rows=steady(lag=30 * MS))
    assert (Aspect.CLIENT_LIMIT, Severity.WARN, "late_sends") in found(late, a)
    cut = side(tmp_path / "d", status="interrupted")
    assert (Aspect.INTERRUPTED, Severity.WARN, "status") in found(a, cut)


def test_failures_of_a_server_are_no_reason_to_refuse(tmp_path):
    rows = [row(i * 10 * MS, outcome=Outcome.HTTP_5XX if i % 5 == 0 else Outcome.OK) for i in range(1000)]
    said = comparability(side(tmp_path / "a"), side(tmp_path / "b", rows=rows))
    assert [(one.aspect, one.severity, one.what) for one in said] == [
        (Aspect.NOT_VALID, Severity.WARN, "failures")
    ]
    assert said[0].a is None
    assert "20" in said[0].b


def test_a_folder_of_repeats_is_one_side(tmp_path):
    for seed in (1, 2):
        build(tmp_path / "all" / str(seed), steady(), seed=seed, profile=PROFILE)
    both = side_of(tmp_path / "all")
    assert (len(both.runs), len(both.pooled.frame)) == (2, 2000)
    assert found(side(tmp_path / "a"), both) == {(Aspect.SEED, Severity.NOTE, "seed")}
    with pytest.raises(LoadgenError, match="neither a run folder"):
        side_of(tmp_path / "nothing here")
