"""Requests that follow one another, and requests that the client gives up, in virtual time."""

from dataclasses import dataclass

import numpy as np
import pytest

from loadgen.engine.dialogues import FOLLOWING
from loadgen.engine.parts import Care
from loadgen.records import CANCEL_WORDS, Outcome, Streamed
from tests.support.virtual import MS, S, VirtualServer, closed_phase, open_phase, play, run_virtual


@dataclass(frozen=True)
class Named:
    name: str
    bytes_out: int = 100


class Talk:
    """A dialogue of some turns that keeps what it heard."""

    def __init__(self, number, turns, heard):
        self.number, self.turns, self.heard, self.turn = number, turns, heard, 0

    def first(self):
        return Named(f"{self.number}.0")

    def after(self, streamed):
        self.heard.append((self.number, self.turn, streamed and streamed.text))
        self.turn += 1
        return Named(f"{self.number}.{self.turn}") if self.turn < self.turns else None


class Server(VirtualServer):
    """Tells each answer as a stream, and keeps what was sent."""

    def send(self, token, prepared):
        self.said = [*getattr(self, "said", []), (prepared.name, self.loop.now_ns() - self.origin_ns)]
        super().send(token, prepared)

    def _end(self, token, outcome):
        sent, _ = self.in_flight[token]
        self.receiver.on_streamed(token, sent, outcome, Streamed(text=f"answer to {token}"))
        super()._end(token, outcome)


def talk(phases, turns=3, think_ns=0, outcome=Outcome.OK, cap=None, meddle=None, service_ns=10 * MS):
    heard = []
    care = Care(begin=lambda n: Talk(n, turns, heard), think_ns=think_ns)

    async def main(loop):
        server = Server(loop, service_ns=service_ns, outcome=outcome)
        rows, results, engine = await play(loop, server, phases, cap=cap, care=care, meddle=meddle)
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


def test_stopping_ends_what_is_between_two_turns():
    def meddle(engine):
        engine._now  # noqa: B018

        def stop():
            engine.stop()

        import asyncio

        asyncio.get_running_loop().call_later(0.3, stop)

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
        assert ended[phase_index, 1] == (Outcome.CANCELLED, 50 * MS, CANCEL_WORDS)
    assert (engine.counts.ok, engine.counts.failed, engine.counts.sent) == (4, 0, 8)
