"""Numbers with their nouns.  This module must not know where they are shown."""


def amount(n: int, noun: str) -> str:
    """1 request, 2 requests, 1 success, 0 successes."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}{'es' if noun.endswith('s') else 's'}"
