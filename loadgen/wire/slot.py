"""A few bytes of a framed request that each sending may replace.  It must not know what they say."""


def put(data: bytes, piece: bytes, slot: tuple[int, int] | None) -> bytes:
    """`data` with `piece` in its slot (start, stop).  Raises ValueError unless it fits to the byte."""
    if slot is None or len(piece) != slot[1] - slot[0]:
        raise ValueError(f"{len(piece)} bytes do not fit the slot {slot}")
    return b"".join((data[: slot[0]], piece, data[slot[1] :]))
