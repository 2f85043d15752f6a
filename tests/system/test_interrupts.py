"""Ctrl-C at odd moments: inside code in C, while a module is imported, when the work is done."""

import os
import signal
import subprocess
import sys

import pytest

from loadgen.convert import publish
from loadgen.convert.convert import ConvertResult
from loadgen.interrupts import held
from tests.support.cli import ROOT, loadgen

_START = """
import atexit, os, signal, sys, threading
from loadgen.cli.main import main
press = lambda *_: os.kill(os.getpid(), signal.SIGINT)
sys.argv = ["loadgen", *sys.argv[1:]]
"""
_IN_AN_EXTENSION = """
from loadgen import interrupts
class Finder:
    def find_spec(self, name, path=None, target=None):
        if interrupts._in_extension(sys._getframe()) and Finder in sys.meta_path:
            sys.meta_path.remove(Finder)
            print("pressed", flush=True)
            press()
Finder.find_spec = classmethod(Finder.find_spec)
sys.meta_path.insert(0, Finder)
"""
_IN_AN_IMPORT = """
class Finder:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name == "loadgen.report.write":
            press()
sys.meta_path.insert(0, Finder)
"""
_AT_EXIT = "atexit.register(press)\n"
_WHILE_THREADS_END = """
def late():
    threading.main_thread().join(0.1)
    while threading.main_thread().is_alive():
        pass
    press()
threading.Thread(target=late).start()
"""
_AT_THE_VERY_END = """
class Last:
    def __del__(self, press=press):
        press()
sys.last_of_all = Last()
"""


@pytest.fixture
def script(tmp_path):
    """`loadgen *args` as a process of its own, in which a text has been run."""

    def run(text, *args):
        (tmp_path / "pressed.py").write_text(_START + text + "main()\n")
        return subprocess.run(
            [sys.executable, "-m", "pressed", *map(str, args)], capture_output=True, text=True, check=False, timeout=60,
            cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)},
        )  # fmt: skip

    return run


def press():
    os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupt_inside_an_extension_is_no_import_error(script):
    done = script(_IN_AN_EXTENSION, "report", "nosuch")
    assert (done.returncode, done.stdout, done.stderr) == (130, "pressed\n", "interrupted\n")


def test_an_interrupt_while_a_verb_is_imported_says_its_line(script):
    done = script(_IN_AN_IMPORT, "report", "nosuch")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


@pytest.mark.parametrize("moment", [_AT_EXIT, _WHILE_THREADS_END, _AT_THE_VERY_END])
def test_an_interrupt_after_the_work_changes_no_exit_code(script, moment):
    done = script(moment, "--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("loadgen ")
    assert script(moment, "report", "nosuch").returncode == 2


def test_an_interrupt_in_a_string_that_is_run_is_told_by_the_exit_code(script):
    done = script(_IN_AN_IMPORT.replace("press()", "exec('press()')"), "report", "nosuch")
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


def test_a_fault_made_of_an_interrupt_is_an_interrupt(monkeypatch, tmp_path):
    def swallows(*_):
        try:
            press()
        except KeyboardInterrupt:
            raise RuntimeError("initialization failed") from None

    monkeypatch.setattr("loadgen.environment.stored.stored", swallows)
    answer = loadgen("env", "diff", "a", "b")
    assert (answer.code, answer.out, answer.err) == (130, "", "interrupted\n")


@pytest.mark.parametrize("at", ["moves", "end"])
def test_what_is_published_when_the_interrupt_comes_is_published(monkeypatch, tmp_path, at):
    """`moves`: between two of them.  `end`: when all is in place."""

    def convert(_source, options, _progress, moving):
        with publish.staged(options) as stage:
            (stage.version / "model.onnx").write_text("new")
            (stage.model / "config.pbtxt").write_text("new")
            publish.publish(stage, options, moving)
        if at == "end":
            press()
        sidecar = {"serving": {"warnings": []}}
        return ConvertResult(options.name, options.version, options.version_folder, {}, (), sidecar)

    real = publish._add_version

    def interrupted(stage, options):
        press()
        real(stage, options)
        press()

    monkeypatch.setattr("loadgen.convert.convert.convert", convert)
    if at == "moves":
        (tmp_path / "m").mkdir()
        monkeypatch.setattr(publish, "_add_version", interrupted)
    answer = loadgen("convert", "x", "--name", "m", "--repository", tmp_path, "--json")
    assert answer.code == 0
    assert answer.json["folder"] == str(tmp_path / "m" / "1")
    assert "interrupted" not in answer.err
    assert (tmp_path / "m" / "config.pbtxt").read_text() == "new"
    assert [file.name for file in tmp_path.iterdir()] == ["m"]


def test_before_the_first_move_an_interrupt_publishes_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr("loadgen.convert.convert.convert", lambda *_: press())
    answer = loadgen("convert", "x", "--name", "m", "--repository", tmp_path)
    assert answer.code == 130
    assert answer.err.strip().endswith("interrupted: nothing was published")


def test_what_is_held_comes_once_and_at_the_end():
    done = []

    def steps():
        with held():
            press()
            press()
            done.append("all")
        done.append("never")

    with pytest.raises(KeyboardInterrupt):
        steps()
    assert done == ["all"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
