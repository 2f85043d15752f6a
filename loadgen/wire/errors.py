"""What is wrong with bytes, in words.  It must not know connections, requests or outcomes."""


class ProtocolError(Exception):
    """Bytes from the peer that break the protocol: one line of text, and the HTTP/2 error code to answer with."""

    def __init__(self, text: str, code: int = 1) -> None:
        super().__init__(text)
        self.code = code


def one_line(text: str, limit: int = 300) -> str:
    """A server's words as one printable line of at most `limit` characters."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
