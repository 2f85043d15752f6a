"""Correlation ids of stateful sequences, and the framing of N requests as one.

Ids have one width in every encoding: 19 digits in JSON, 9 bytes as a protobuf varint, so that a framed
request takes another id by exchanging bytes.  It must not know protocols or who sends.
"""

FIRST_ID = 10**18  # 19 digits; above 2^56, where a varint has 9 bytes
IDS = 2**63 - FIRST_ID  # as many again fit below 2^63, all as wide


def first_id(entropy: int) -> int:
    """Where a run's ids begin.

    `entropy`: any whole number that differs from run to run (its start in ns): a server still holds the
    sequences of a run that was cut off, and must not take ours for those.
    """
    spread = (entropy * 0x9E3779B97F4A7C15) % 2**64  # Fibonacci hashing: near starts lie far apart
    return FIRST_ID + spread * (IDS >> 1) // 2**64  # the upper half is left for counting up


def sequence_id(first: int, nth: int) -> int:
    """The id of a run's nth sequence (from 0), below 2^62 of them."""
    return first + nth


def steps(length: int) -> list[tuple[bool, bool]]:
    """(start, end) of each request of a sequence of `length` requests; one alone is both."""
    return [(i == 0, i == length - 1) for i in range(length)]
