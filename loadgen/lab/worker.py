"""Senders in processes of their own: one event loop a core, each with a slice of the same plan.

`RemoteSender` is the parent's end, `main` the child's.  They speak JSON lines over the child's standard
input and output: orders and results, a tick twice a second, never a request.  A child whose parent is
gone stops by itself; a parent whose child is gone counts what it had planned as never sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from loadgen.connect.options import ConnectOptions
from loadgen.engine.parts import Counts, PhaseResult
from loadgen.lab.facts import raise_file_limit
from loadgen.lab.sender import FLUSH_S, LocalSender, Share, Watched
from loadgen.lab.target import Models, models_from_json, models_to_json, planned
from loadgen.records import LoadgenError, NotMeasuredError
from loadgen.runfile import RecordWriter, records_name
from loadgen.target import parse_target
from loadgen.traffic.profile import parse_profile
from loadgen.transport.dial import Via

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_LINE_BYTES = 2**24
_START_S, _END_S = 60.0, 10.0


class RemoteSender:
    """A sender in a child process.  See lab.sender.Sender."""

    def __init__(self, share: Share, models: Models, folder: Path) -> None:
        self.error: LoadgenError | None = None
        self.lost = False  # it ended before it was told to
        self.refused: list[str] = []
        self._share, self._models, self._folder = share, models, folder
        self._watched = Watched()
        self._answer: asyncio.Future[Any] | None = None
        self._closing = False

    async def ready(self) -> None:
        """See Sender."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            __name__,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_LINE_BYTES,
            start_new_session=True,
        )  # fmt: skip - a session of its own: the terminal's Ctrl-C is for the parent, who passes it on
        self._task = asyncio.get_running_loop().create_task(self._read())
        share = self._share
        order = {
            "profile": [share.profile.text, share.profile.name, str(share.profile.folder)], "via": share.via, "labelled": share.labelled,
            "include_usage": share.include_usage, "plan_file": share.plan_file and str(share.plan_file.absolute()), "seed": share.seed, "target": share.target.url,
            "transport": share.transport, "origin_ns": share.origin_ns, "worker": share.worker,
            "workers": share.workers, "realtime": share.realtime, "cores": share.cores,
            "options": _options_to_json(share.options), "models": models_to_json(self._models), "folder": str(self._folder),
        }  # fmt: skip
        try:
            ready = await asyncio.wait_for(self._ask("order", order), _START_S)
        except TimeoutError:
            raise NotMeasuredError(f"worker {share.worker} was not ready within {_START_S:g} s") from None
        if ready is None or "error" in ready:
            raise LoadgenError(
                f"worker {share.worker}: {(ready or {}).get('error', 'it ended at its start')}"
            )
        self.refused = ready["refused"]

    @property
    def pid(self) -> int:
        """Of the child."""
        return self._process.pid

    async def run_phase(self, index: int, start_ns: int) -> PhaseResult | None:
        """See Sender."""
        answer = await self._ask("phase", [index, start_ns])
        if answer is None or "error" in answer:
            self._fail((answer or {}).get("error"))
            return None
        return PhaseResult(**answer["result"])

    def stop(self) -> None:
        """See Sender."""
        self._tell("stop", None)

    def cancel_in_flight(self) -> None:
        """See Sender."""
        self._tell("cancel", None)

    def watched(self) -> Watched:
        """See Sender: as of its last tick."""
        return self._watched

    async def close(self, begun: Sequence[Sequence[int]] = ()) -> dict[str, Any]:
        """See Sender."""
        if not hasattr(self, "_process"):
            return {}
        facts: dict[str, Any] | None = None
        with contextlib.suppress(TimeoutError):
            facts = await asyncio.wait_for(self._ask("close", begun), _END_S)
        self._closing = True
        if self._process.returncode is None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), _END_S)
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        self._task.cancel()
        if facts is None:
            self.lost = True
            return {"lost": True}
        self._fail(facts.pop("error", None))
        return facts

    def _fail(self, words: str | None) -> None:
        if words is not None:
            self.error = self.error or NotMeasuredError(words)

    async def _ask(self, verb: str, value: Any) -> Any:
        """The child's answer; None when there is no child any more."""
        if self.lost:
            return None
        self._answer = asyncio.get_running_loop().create_future()
        self._tell(verb, value)
        return await self._answer

    def _tell(self, verb: str, value: Any) -> None:
        if not self.lost and self._process.stdin is not None:
            with contextlib.suppress(OSError, RuntimeError):  # it is gone; the reader notices
                self._process.stdin.write(json.dumps([verb, value]).encode() + b"\n")

    async def _read(self) -> None:
        stdout = self._process.stdout
        assert stdout is not None  # noqa: S101 - asked for
        while line := await stdout.readline():
            what, value = json.loads(line)
            if what == "tick":
                bins = np.zeros(value["size"], np.int64)
                bins[value["at"]] = value["n"]
                self._watched = Watched(Counts(**value["counts"]), value["in_flight"], bins)
            elif self._answer is not None and not self._answer.done():
                self._answer.set_result(value)
        self.lost = not self._closing
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(None)


async def serve() -> None:
    """The child: does what it is told until it is told to close, or its parent is gone."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_LINE_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    first = await reader.readline()
    sender = await _begin(json.loads(first)[1]) if first else None
    if sender is None:
        return
    tasks = [loop.create_task(_tick(sender))]
    verbs: dict[str, Callable[[Any], Any]] = {
        "phase": lambda value: tasks.append(loop.create_task(_phase(sender, *value))),
        "stop": lambda _: sender.stop(),
        "cancel": lambda _: sender.cancel_in_flight(),
    }
    begun: list[list[int]] = []
    while line := await reader.readline():
        verb, value = json.loads(line)
        if verb == "close":
            begun = value
            break
        verbs[verb](value)
    sender.stop()  # else users would go on asking a transport that is being closed
    sender.cancel_in_flight()
    for task in tasks:  # a phase still runs when the parent is gone: write what there is, and end
        task.cancel()
    facts = await sender.close(begun)
    _say("closed", facts | ({"error": str(sender.error)} if sender.error else {}))


async def _begin(order: dict[str, Any]) -> LocalSender | None:
    try:
        raise_file_limit()
        text, name, folder = order["profile"]
        profile = parse_profile(text, name, Path(folder))
        share = Share(
            options=_options_from_json(order["options"]), profile=profile, seed=order["seed"], target=parse_target(order["target"]), transport=order["transport"],
            origin_ns=order["origin_ns"], worker=order["worker"], workers=order["workers"],
            realtime=order["realtime"], cores=tuple(order["cores"]), include_usage=order["include_usage"],
            plan_file=Path(order["plan_file"]) if order["plan_file"] else None,
            labelled=order["labelled"], via=order["via"] and Via(*order["via"]),
        )  # fmt: skip
        plan = planned(profile, share.seed, share.plan_file)
        path = Path(order["folder"]) / records_name(share.worker)
        phases, kinds = [p.name for p in plan.phases], list(plan.kinds)
        sender = LocalSender(
            share,
            plan,
            models_from_json(order["models"]),
            lambda observe: RecordWriter(path, phases, kinds, observe),
        )
        await sender.ready()
    except LoadgenError as why:
        _say("ready", {"error": str(why)})
        return None
    _say("ready", {"refused": sender.refused})
    return sender


def _options_to_json(options: ConnectOptions) -> dict[str, Any]:
    """Secrets go through the pipe, not through a command line that everybody can read."""
    paths = {
        name: path and str(path) for name in ("cacert", "cert", "key") for path in [getattr(options, name)]
    }
    return {"headers": options.headers, "insecure": options.insecure, **paths}


def _options_from_json(row: dict[str, Any]) -> ConnectOptions:
    paths = {name: Path(row[name]) if row[name] else None for name in ("cacert", "cert", "key")}
    return ConnectOptions(headers=tuple((n, v) for n, v in row["headers"]), insecure=row["insecure"], **paths)


async def _phase(sender: LocalSender, index: int, start_ns: int) -> None:
    result = await sender.run_phase(index, start_ns)
    _say("phase", {"error": str(sender.error)} if result is None else {"result": asdict(result)})


async def _tick(sender: LocalSender) -> None:
    while True:
        await asyncio.sleep(FLUSH_S)
        now = sender.watched()
        at = np.flatnonzero(now.bins)
        _say("tick", {"counts": asdict(now.counts), "in_flight": now.in_flight, "size": len(now.bins),
                      "at": at.tolist(), "n": now.bins[at].tolist()})  # fmt: skip


def _say(what: str, value: Any) -> None:
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(json.dumps([what, value]) + "\n")
        sys.stdout.flush()


def main() -> None:
    """`python -m loadgen.lab.worker`, started by RemoteSender."""
    from loadgen.lab.loop import new_loop

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(serve())


if __name__ == "__main__":
    main()
