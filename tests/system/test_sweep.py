"""`loadgen sweep` at a server that goes away, is changed by others, lets nobody load, or is none; folders that are none."""

import json
import shutil

import pytest

from loadgen.analysis.sweep import read_journal
from loadgen.records import LoadgenError
from tests.support.cli import loadgen
from tests.support.kserve_mock import Mock, Model

PROFILE = """
kinds: {k: {model: m, length: 4}}
phases: [{name: not used, closed: {users: 1, requests: 1}}]
"""
SWEEP = """
name: s
profile: profile.yaml
loads: [{users: 2}]
block: 300ms
repeats: 2
warm_up: 1ms
grid: {delay: [0ms, 5ms]}
"""


class Configured(Model):
    """A model that has the configuration it was last loaded with, as Triton's have."""

    def __init__(self, mock):
        super().__init__()
        self.mock = mock

    def config(self, model):
        return (self.mock.loads and self.mock.loads[-1][1]) or super().config(model)


@pytest.fixture
def swept(tmp_path):
    """Calls `loadgen sweep` on a mock: (mock, the call, where it writes)."""
    (tmp_path / "profile.yaml").write_text(PROFILE)
    (tmp_path / "sweep.yaml").write_text(SWEEP)
    out = tmp_path / "out"
    with Mock(lambda n: (0.005, 200, None)) as mock:
        mock.control = "explicit"
        mock.models = {"m": Configured(mock)}

        def call(*words, target=mock.target):
            given = words or (tmp_path / "sweep.yaml", "--target", target, "--out", out)
            return loadgen("sweep", *given, "--json", "-q")

        yield mock, call, out


def blocks(out):
    return sorted(path.name for path in (out / "blocks").iterdir())


def in_block(out, number):
    """Whether the n-th block is being measured."""
    begun = list(out.glob("blocks/*/run.json"))
    return len(begun) == number and not any(out.glob("warm-*"))


def test_a_block_in_which_the_model_went_away_is_not_counted_and_measured_again(swept):
    """A dead server's 17 requests/s are no figure of the configuration that happened to be loaded."""
    mock, call, out = swept

    def answer(n):
        if in_block(out, 2) and not mock.gone:
            mock.gone = True
            del mock.models["m"]
        return (0.005, 200, None)

    mock.gone, mock.answer = False, answer
    broken = call()
    assert (broken.code, len(broken.error_lines)) == (3, 1)  # things were sent: it is no usage error
    assert "is not counted: " in broken.err
    assert f"loadgen sweep resume {out} goes on" in broken.err
    assert len(blocks(out)) == 1
    assert len(list((out / "cut").iterdir())) == 1  # its records are kept
    assert json.loads((out / "sweep.json").read_text())["status"] == "broken"
    mock.models["m"] = Configured(mock)
    resumed = call("resume", out)
    assert resumed.code in (0, 3), resumed
    assert len(blocks(out)) == 4
    assert all(cell["blocks"] == 2 for cell in resumed.json["cells"])
    rates = [rate for cell in resumed.json["cells"] for rate in cell["each"]["achieved_per_s"]]
    assert min(rates) > 0.3 * max(rates)


def test_a_block_during_which_others_loaded_the_model_otherwise_is_not_counted(swept):
    mock, call, out = swept

    def answer(n):
        if in_block(out, 1):
            mock.loads.append(("m", {**mock.loads[-1][1], "max_batch_size": 3}))
        return (0.005, 200, None)

    mock.answer = answer
    broken = call()
    assert broken.code == 3
    assert "somebody else loaded 'm' with another configuration" in broken.err
    assert blocks(out) == []
    shown = loadgen("sweep", "show", out)
    assert shown.code == 3  # nothing was measured: not the same as that none meets the objectives


def test_a_profile_that_was_changed_since_is_told(swept, tmp_path):
    _, call, out = swept
    assert call().code in (0, 3)
    shutil.rmtree(next((out / "blocks").iterdir()))
    (tmp_path / "profile.yaml").write_text(PROFILE.replace("length: 4", "length: 9"))
    answer = loadgen("sweep", "resume", out, "--json")
    assert "profile.yaml was changed since: the sweep goes on with the text it began with" in answer.err
    lengths = {
        json.loads(path.read_text())["profile"]["text"].count("length: 4")
        for path in out.glob("blocks/*/run.json")
    }
    assert lengths == {1}


def test_a_server_that_lets_nobody_load_is_told_what_to_do(swept):
    mock, call, out = swept
    mock.control = "none"
    refused = call()
    assert refused.code == 2
    assert "load / unload is not allowed" in refused.err
    assert "--model-control-mode=explicit" in refused.err
    assert not out.exists()


@pytest.mark.parametrize("path", ["/nowhere", "/v1"])
def test_a_server_without_the_api_is_called_so(swept, path):
    mock, call, out = swept
    refused = call(target=mock.target + path)
    assert (refused.code, len(refused.error_lines)) == (2, 1)
    assert "has no KServe v2 API" in refused.err
    assert not out.exists()


@pytest.mark.parametrize("text", ["{}", "[]", "3", '{"format": 9}', '{"format": 1}', '{"x"'])
def test_a_journal_that_is_none_is_one_line(tmp_path, text):
    (tmp_path / "sweep.json").write_text(text)
    with pytest.raises(LoadgenError, match=r"sweep\.json"):
        read_journal(tmp_path)
    for verb in ("show", "resume"):
        answer = loadgen("sweep", verb, tmp_path)
        assert (answer.code, len(answer.error_lines), "fault in loadgen" in answer.err) == (2, 1, False)


def test_report_of_a_sweep_names_the_verb_that_shows_it(tmp_path):
    (tmp_path / "sweep.json").write_text("{}")
    assert f"loadgen sweep show {tmp_path}" in loadgen("report", tmp_path).err


@pytest.mark.parametrize("how", [(), ("--json",)])
def test_a_result_that_cannot_be_written_is_shown_all_the_same(swept, how):
    """An archive's folder is read-only, a disk is full: what was measured is still to be seen."""
    _, call, out = swept
    assert call().code in (0, 3)
    (out / "result.json").unlink()
    (out / "result.json").mkdir()
    shown = loadgen("sweep", "show", out, *how)
    assert (shown.code, shown.err) == (3, f"error: cannot write {out}/result.json: Is a directory\n")
    assert "delay 5 ms" in shown.out


def test_rejections_and_failures_of_a_cell_are_told(swept):
    mock, call, out = swept
    mock.answer = lambda n: (0.005, 429 if mock._in_flight > 1 else 200, "busy")  # of two users one
    assert call().code in (0, 3)
    said = " ".join(loadgen("sweep", "show", out).out.split())
    assert "the server's queue was full: delay 0 at 2 users; delay 5 ms at 2 users" in said


def test_a_field_that_is_none_is_refused_in_one_line(swept, tmp_path):
    _, call, out = swept
    (tmp_path / "sweep.yaml").write_text(SWEEP.replace("delay: [0ms, 5ms]", "set: {nonsense: [3]}"))
    refused = call()
    assert refused.code == 2
    assert len(refused.error_lines) == 1
    assert refused.err.count("max_batch_size") == 1  # what is allowed, once
    assert "Available Fields" not in refused.err
    assert not out.exists()


def test_headers_go_with_everything_and_are_written_nowhere(swept, tmp_path):
    mock, call, out = swept

    def told():
        return {headers.get("Authorization", headers.get("authorization")) for headers in mock.headers}

    secret = "authorization: Bearer 5ecret"
    swept_ = call(tmp_path / "sweep.yaml", "--target", mock.target, "--out", out, "-H", secret)
    assert swept_.code in (0, 3), swept_
    assert told() == {"Bearer 5ecret"}
    shutil.rmtree(out / "blocks" / blocks(out)[-1])
    mock.headers.clear()
    assert call("resume", out, "-H", secret).code in (0, 3)
    assert told() == {"Bearer 5ecret"}
    assert not [f for f in out.rglob("*") if f.is_file() and b"5ecret" in f.read_bytes()]


def test_what_would_act_on_nothing_is_refused(swept, tmp_path):
    mock, call, out = swept
    for words, says in (
        (("--target", mock.target, "--insecure"), "--insecure"),
        (("-H", "a: b"), "headers and TLS are for a server of yours: name it with --target"),
    ):
        refused = call(tmp_path / "sweep.yaml", "--out", out, *words)
        assert (refused.code, len(refused.error_lines)) == (2, 1), refused
        assert says in refused.err
    assert not out.exists()


def test_a_server_that_is_not_there_is_one_line(swept):
    """Nothing was unloaded: nothing is said of how the model was left."""
    _, call, out = swept
    refused = call(target="http://127.0.0.1:9")
    assert (refused.code, len(refused.err.splitlines())) == (2, 1), refused
    assert "no server answers at http://127.0.0.1:9" in refused.err
    assert not out.exists()


def test_an_ensemble_is_refused_in_words_and_left_as_it_is(swept):
    """It has no batcher: every configuration would have measured the same, with "mean batch 1.00"."""
    mock, call, out = swept

    class Ensemble(Model):
        def config(self, model):
            steps = [{"model_name": name, "model_version": -1} for name in ("pre", "post")]
            return super().config(model) | {"platform": "ensemble", "ensemble_scheduling": {"step": steps}}

    mock.models = {"m": Ensemble()}
    refused = call()
    assert (refused.code, len(refused.error_lines)) == (2, 1), refused
    assert "'m' is an ensemble" in refused.err
    assert "(pre, post)" in refused.err
    assert not mock.loads
    assert not out.exists()
