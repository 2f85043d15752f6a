"""Bodies of streamed answers as servers write them, the good, the odd and the broken; and four ways to cut them."""

import json


def chunk(*choices, **fields):
    return {
        "id": "x-1",
        "object": "chat.completion.chunk",
        "created": 9,
        "model": "m",
        "choices": list(choices),
        **fields,
    }


def delta(index=0, finish=None, **fields):
    return {"index": index, "delta": fields, "finish_reason": finish}


def said(text, **fields):
    return chunk(delta(content=text), **fields)


def usage(tokens_in, tokens_out, *choices):
    told = {
        "prompt_tokens": tokens_in,
        "completion_tokens": tokens_out,
        "total_tokens": tokens_in + tokens_out,
    }
    return chunk(*choices, usage=told)


ROLE = chunk(delta(role="assistant", content=""))
STOP = chunk(delta(finish="stop"))
DONE = "[DONE]"


def text_of(event):
    return event if isinstance(event, str) else json.dumps(event, ensure_ascii=False)


def body(*events, end="\n", lead="data: "):
    """Each event on one line."""
    return "".join(f"{lead}{text_of(event)}{end}{end}" for event in events).encode()


PLAIN = (ROLE, said("Good"), said(" day"), STOP, usage(3, 2), DONE)


def cuttings(data):
    """Whole, byte by byte, every seven bytes, two events in one write."""
    yield [data]
    yield [data[i : i + 1] for i in range(len(data))]
    yield [data[i : i + 7] for i in range(0, len(data), 7)]
    events = [event + b"\n\n" for event in data.split(b"\n\n")]
    events[-1] = events[-1][:-2]
    yield [b"".join(events[i : i + 2]) for i in range(0, len(events), 2)]
