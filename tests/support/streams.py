"""Runs whose answers came in pieces, through the writer that a real run uses."""

from loadgen.records import Streamed
from loadgen.runfile import RunFolder
from tests.support.runs import MS, info, phase, row

ORIGIN = 7 * 10**12  # of the run, on the absolute clock


def chat(
    due,
    chunks=(),
    *,
    lag=0,
    tail=MS,
    out=None,
    into=-1,
    source="usage",
    finish="stop",
    content=0,
    more=None,
    **over,
):
    """One streamed request: `chunks` are stamps from sent on, `content` is the place of the first one with content
    proper (None: none), `out` the tokens out (None: one a chunk; -1: not told); it is done `tail` after the last.  `more` are further fields of Streamed.
    """
    sent = due + lag
    stamps = [ORIGIN + sent + at for at in chunks]
    out = len(stamps) if out is None else out
    streamed = Streamed(
        chunk_ns=stamps, first_content_ns=stamps[content] if stamps and content is not None else 0, tokens_in=into,
        tokens_out=out, source=source if out >= 0 else "", finish=finish, **(more or {}),
    )  # fmt: skip
    service = max(chunks, default=0) + tail
    return row(due, service, lag, **over) | {"streamed": streamed}


def every(gap, n, first=100 * MS):
    """Chunks a gap apart, from the first on."""
    return [first + i * gap for i in range(n)]


def build_streamed(path, rows, phases=None, **over):
    """As runs.build, of rows of which some are chats; returns the path."""
    phases = [phase(planned=len(rows))] if phases is None else phases
    path.mkdir(parents=True, exist_ok=True)
    writer = RunFolder(path, info(phases, **over)).writer()
    for seq, fields in enumerate(rows):
        streamed = fields.get("streamed")
        plain = {name: value for name, value in fields.items() if name != "streamed"}
        if streamed is not None:
            names = ("phase", "kind", "due_ns", "sent_ns", "outcome")
            writer.append_streamed(seq, *(plain[name] for name in names), ORIGIN, streamed)
        writer.append(seq=seq, **plain)
    writer.close()
    assert writer.error is None
    return path
