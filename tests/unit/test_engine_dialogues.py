"""Requests that follow one another, and requests that the client gives up, in virtual time."""

import asyncio
from dataclasses import dataclass, replace

import numpy as np
import pytest

from loadgen.engine.dialogues import FOLLOWING
from loadgen.engine.parts import Care, Shot
from loadgen.records import Outcome, Streamed
from tests.support.virtual import MS, S, VirtualServer, closed_phase, open_phase, play, run_virtual


@dataclass(frozen=True)
class Named:
    name: str
    bytes_out: int = 100


class Talk:
    """A dialogue of some turns that keeps what it heard."""

    kind = 0

    def __init__(self, number, turns, heard):
        self.number, self.turns, self.heard, self.turn = number, turns, heard, 0

    def first(self):
        return Shot(Named(f"{self.number}.0"), self.kind, 8, 1)

    def after(self, streamed, *, last):
        self.heard.append((self.number, self.turn, streamed and streamed.text))
        self.turn += 1
        name = f"{self.number}.{self.turn}"
        return (
            Shot(Named(name, 100 * (self.turn + 1)), self.kind, -1, 1)
            if self.turn < self.turns and not last
            else None
        )


class Server(VirtualServer):
    """Tells each answer as a stream, and keeps what was sent."""

    def send(self, token, prepared):
        self.said = [*getattr(self, "said", []), (prepared.name, self.loop.now_ns() - self.origin_ns)]
        super().send(token, prepared)

    def _end(self, token, outcome):
        sent, _ = self.in_flight[token]
        self.receiver.on_streamed(token, sent, outcome, Streamed(text=f"answer to {token}"))
        super()._end(token, outcome)


def talk(phases, turns=3, think_ns=0, outcome=Outcome.OK, service_ns=10 * MS, **options):
    heard = []
    care = Care(begin=lambda n: Talk(n, turns, heard), think_ns=think_ns)

    async def main(loop):
        server = Server(loop, service_ns=service_ns, outcome=outcome)
        rows, results, engine = await play(loop, server, phases, **({"care": care} | options))
        return rows, results, engine, server, heard

    return run_virtual(main)


def test_each_turn_is_due_a_pause_after_the_answer_to_the_one_before():
    rows, [result], engine, server, heard = talk([open_phase([0, 1], 5)], think_ns=S // 2)
    at = {name: t - result.start_ns for name, t in server.said}
    assert at == {"0.0": 0, "0.1": 510 * MS, "0.2": 1020 * MS, "1.0": S, "1.1": 1510 * MS, "1.2": 2020 * MS}
    assert (rows.column("due_ns") == rows.column("sent_ns")).all()
    assert sorted(rows.column("seq")) == sorted(i + k * FOLLOWING for i in (0, 1) for k in range(3))
    assert result.followed == 4
    assert (engine.counts.due, engine.counts.sent, engine.counts.ok) == (6, 6, 6)
    assert heard[0] == (0, 0, "answer to 0")


def test_a_user_of_a_closed_loop_holds_one_dialogue_at_a_time():
    _, [result], engine, server, _ = talk([closed_phase(2, requests=5)], turns=3)
    assert [name for name, _ in server.said[:4]] == ["0.0", "1.0", "0.1", "1.1"]
    assert server.most == 2
    assert engine.counts.ok == 15
    assert result.followed == 10


def test_a_dialogue_ends_with_its_first_failure_and_its_user_goes_on():
    outcome = lambda token: Outcome.HTTP_5XX if token == 0 else Outcome.OK  # noqa: E731
    _, [result], engine, server, _ = talk([closed_phase(1, requests=2)], outcome=outcome)
    assert [name for name, _ in server.said] == ["0.0", "1.0", "1.1", "1.2"]
    assert (engine.counts.failed, engine.counts.ok, result.followed) == (1, 3, 2)


def test_turns_due_after_the_load_are_not_sent():
    _, [result], _, server, _ = talk([open_phase([0], 1)], turns=5, think_ns=S // 3)
    assert len(server.said) == 3
    assert result.followed == 2


def test_a_later_turn_waits_at_the_cap_with_its_clock_running():
    rows, _, _, server, _ = talk([open_phase([0, 0.005], 2)], turns=2, think_ns=12 * MS, cap=1)
    assert server.most == 1
    assert [name for name, _ in server.said] == ["0.0", "1.0", "0.1", "1.1"]
    due, sent, seq = (rows.column(n) for n in ("due_ns", "sent_ns", "seq"))
    second = dict(zip(seq.tolist(), (sent - due).tolist(), strict=True))
    assert second[0] == 0
    assert second[1] == 5 * MS
    assert second[FOLLOWING] == 0  # due at 22 ms, the cap is free from 20 ms on
    assert second[1 + FOLLOWING] == 0


def test_who_waits_at_the_cap_comes_before_a_turn_that_is_due_later():
    """Without a pause a turn is due when its answer comes; the second arrival has been due since 5 ms."""
    rows, [result], _, server, _ = talk([open_phase([0, 0.005], 2)], turns=3, cap=1)
    assert server.most == result.max_in_flight == 1
    assert [name for name, _ in server.said] == ["0.0", "1.0", "0.1", "1.1", "0.2", "1.2"]
    assert rows.column("due_ns").tolist() == [
        rows.column("sent_ns")[0] + t * MS for t in (0, 5, 10, 20, 30, 40)
    ]
    assert result.cap_waits == 5


def test_a_turn_dropped_at_the_cap_ends_its_dialogue_and_the_phase_goes_on():
    rows, [result], engine, server, _ = talk(
        [open_phase([0, 0.015], 2)], turns=2, think_ns=8 * MS, cap=1, drop=True
    )
    assert [name for name, _ in server.said] == ["0.0", "1.0", "1.1"]  # 0.1 is due at 18 ms: 1.0 is under way
    ended = dict(zip(rows.column("seq").tolist(), rows.column("outcome").tolist(), strict=True))
    assert ended == {0: 0, FOLLOWING: Outcome.DROPPED, 1: 0, 1 + FOLLOWING: 0}
    assert (engine.counts.due, engine.counts.sent, engine.counts.ok, engine.counts.dropped) == (4, 3, 3, 1)
    assert result.followed == 2
    assert not engine._dialogues._of


def test_a_turn_that_waits_its_whole_timeout_at_the_cap_ends_its_dialogue():
    heard = []
    service = lambda token, _: 10 * MS if token == 0 else 3 * S  # noqa: E731
    phase = replace(open_phase([0, 0.015], 2), kind=np.array([0, 1], np.int16))
    cares = [Care(begin=lambda n: Talk(n, 2, heard), think_ns=8 * MS), None]

    async def main(loop):
        server = VirtualServer(loop, service_ns=service)
        return (*await play(loop, server, [phase], cap=1, timeout_ns=[S, 9 * S], care=cares), server)

    rows, _, engine, server = run_virtual(main)
    assert [token for token, _ in server.sent] == [0, 1]
    ended = {r["seq"]: (r["outcome"], r["sent_ns"] >= 0) for r in rows.rows}
    assert ended == {0: (0, True), 1: (0, True), FOLLOWING: (Outcome.TIMEOUT, False)}
    assert (engine.counts.ok, engine.counts.failed) == (2, 1)
    assert not engine._dialogues._of


def test_each_request_of_a_dialogue_is_recorded_as_it_was_sent():
    rows, *_ = talk([closed_phase(1, requests=1)], turns=3)
    assert rows.column("bytes_out").tolist() == [100, 200, 300]
    assert rows.column("length").tolist() == [8, -1, -1]


@pytest.mark.parametrize("loop_of", ["open", "closed"])
def test_phases_after_one_another_begin_dialogues_of_their_own(loop_of):
    """The last turns of the first phase are due after its end: not sent, and not in the second phase either."""
    phase = open_phase([0, 0.5], 1) if loop_of == "open" else closed_phase(2, duration_s=1)
    rows, results, engine, server, _ = talk([phase, replace(phase, name="again")], turns=4, think_ns=S // 4)
    for index, result in enumerate(results):
        of = [r for r in rows.rows if r["phase"] == index]
        assert len({r["seq"] for r in of}) == len(of)
        assert max(r["due_ns"] for r in of) < result.load_end_ns
        assert result.followed == sum(r["seq"] >= FOLLOWING for r in of) > 0
        assert result.end_ns - result.start_ns < 1.02 * S
    begun = [int(name.split(".")[0]) for name, _ in server.said if name.endswith(".0")]
    assert begun == list(range(len(begun)))  # numbers of dialogues go on: a server may know them
    assert engine.counts.due == engine.counts.ok == len(rows.rows)


def test_kinds_with_and_without_dialogues_side_by_side():
    class OfTheOther(Talk):
        kind = 1

    heard = []
    cares = [None, Care(begin=lambda n: OfTheOther(n, 3, heard))]
    plan = open_phase(np.arange(40) * 0.01, 1)
    plan = replace(plan, kind=(np.arange(40) % 2).astype(np.int16))

    async def main(loop):
        server = VirtualServer(loop, service_ns=25 * MS)
        return (*await play(loop, server, [plan], cap=2, timeout_ns=[S, S], care=cares), server)

    rows, [result], engine, server = run_virtual(main)
    kinds, seq = rows.column("kind"), rows.column("seq")
    assert np.bincount(kinds).tolist() == [20, 60]
    assert (kinds == seq % FOLLOWING % 2).all()
    assert len(set(seq.tolist())) == 80 == engine.counts.ok == engine.counts.due
    assert result.followed == 40
    assert server.most == 2
    assert len(heard) == 60


class Whole(Talk):
    """A dialogue that has to be brought to its end, whatever happens."""

    def after(self, streamed, *, last):
        if last and self.turn < self.turns - 2:
            self.turn = self.turns - 2
        return super().after(streamed, last=False)


@pytest.mark.parametrize("loop_of", ["open", "closed"])
def test_the_loads_end_brings_a_sequence_to_its_last_request(loop_of):
    """A server keeps the state of a sequence that was never ended."""
    phase = open_phase([0], 1) if loop_of == "open" else closed_phase(1, duration_s=1)
    care = Care(begin=lambda n: Whole(n, 100, []), think_ns=300 * MS)
    _, [result], engine, server, _ = talk([phase], care=care)
    assert [name for name, _ in server.said] == ["0.0", "0.1", "0.2", "0.3", "0.99"]
    assert (engine.counts.due, engine.counts.ok, result.followed) == (5, 5, 4)


@pytest.mark.parametrize("drop", [False, True])
def test_users_of_a_closed_loop_wait_at_the_cap(drop):
    """Whatever becomes of arrivals there: a user who was sent away would come back at once."""

    async def main(loop):
        server = VirtualServer(loop, service_ns=10 * MS)
        return (*await play(loop, server, [closed_phase(5, requests=20)], cap=2, drop=drop), server)

    rows, [result], engine, server = run_virtual(main)
    assert server.most == result.max_in_flight == 2
    assert (engine.counts.ok, engine.counts.dropped, engine.counts.due) == (20, 0, 20)
    assert result.end_ns - result.start_ns == 100 * MS
    assert result.load_end_ns - result.start_ns == 90 * MS  # the last request is sent
    latency = rows.column("done_ns") - rows.column("due_ns")
    assert latency.max() == 30 * MS  # five users, two places: the third pair of places is theirs
    assert (rows.column("sent_ns") - rows.column("due_ns")).max() == 20 * MS
    assert [token for token, _ in server.sent] == list(range(20))


def test_users_who_gave_up_at_the_cap_come_back_and_the_phase_ends():
    async def main(loop):
        server = VirtualServer(loop, service_ns=10 * S)
        return await play(loop, server, [closed_phase(3, requests=9)], cap=1, timeout_ns=S)

    rows, [result], engine = run_virtual(main)
    assert len(rows.rows) == 9 == engine.counts.failed
    assert {r["outcome"] for r in rows.rows} == {Outcome.TIMEOUT}
    assert result.end_ns - result.start_ns < 9.5 * S


def test_dialogues_of_a_closed_loop_share_the_cap():
    _, [result], engine, server, _ = talk([closed_phase(4, requests=8)], turns=3, think_ns=5 * MS, cap=2)
    assert server.most == 2
    assert (engine.counts.ok, result.followed) == (24, 16)
    assert (
        result.end_ns - result.start_ns <= 140 * MS
    )  # 24 requests of 10 ms in two places, nearly always taken


def test_turns_given_up_as_asked_end_their_dialogue_and_are_no_failures():
    service = lambda token, _: 10 * MS if token < FOLLOWING else 200 * MS  # noqa: E731
    care = Care(50 * MS, lambda n: Talk(n, 3, []))
    rows, _, engine, server, _ = talk([closed_phase(1, requests=2)], care=care, service_ns=service)
    assert [name for name, _ in server.said] == ["0.0", "0.1", "1.0", "1.1"]
    assert [r["outcome"] for r in rows.rows] == [0, Outcome.PLANNED_CANCEL, 0, Outcome.PLANNED_CANCEL]
    assert (engine.counts.ok, engine.counts.failed) == (2, 0)
    assert not engine._patience._giving_up


def test_stopping_ends_what_is_between_two_turns():
    def meddle(engine):
        asyncio.get_running_loop().call_later(0.3, engine.stop)

    _, [result], engine, server, _ = talk([closed_phase(1, requests=1)], turns=3, think_ns=S, meddle=meddle)
    assert [name for name, _ in server.said] == ["0.0"]
    assert (engine.counts.ok, result.followed) == (1, 0)


@pytest.mark.parametrize("loop_of", ["open", "closed"])
def test_requests_given_up_as_asked_are_no_failures(loop_of):
    phase = open_phase(np.arange(4) * 0.1, 1) if loop_of == "open" else closed_phase(1, requests=4)

    async def main(loop):
        server = VirtualServer(loop, service_ns=lambda token, _: 200 * MS if token % 2 else 5 * MS)
        return await play(loop, server, [phase, phase], care=Care(cancel_ns=50 * MS))

    rows, _, engine = run_virtual(main)
    ended = {
        (r["phase"], r["seq"]): (r["outcome"], r["done_ns"] - r["sent_ns"], r["detail"]) for r in rows.rows
    }
    for phase_index in (0, 1):  # a token of the second phase is not given up on the first one's clock
        assert ended[phase_index, 0] == (Outcome.OK, 5 * MS, None)
        assert ended[phase_index, 1] == (Outcome.PLANNED_CANCEL, 50 * MS, None)
    assert (engine.counts.ok, engine.counts.failed, engine.counts.sent) == (4, 0, 8)


class LateServer(VirtualServer):
    """Has no connection for a request until so long after it was handed over."""

    def send(self, token, prepared):
        self.loop.call_later(0.07 * token, super().send, token, prepared)


def test_a_request_is_given_up_so_long_after_it_was_sent_however_long_it_waited_for_a_connection():
    async def main(loop):
        server = LateServer(loop, service_ns=S)
        return await play(loop, server, [open_phase(np.zeros(4), 1)], care=Care(cancel_ns=50 * MS))

    rows, _, engine = run_virtual(main)
    ended = {
        r["seq"]: (r["outcome"], r["sent_ns"] - r["due_ns"], r["done_ns"] - r["sent_ns"]) for r in rows.rows
    }
    assert ended == {n: (Outcome.PLANNED_CANCEL, 70 * n * MS, 50 * MS) for n in range(4)}
    assert (engine.counts.sent, engine.counts.failed) == (4, 0)
