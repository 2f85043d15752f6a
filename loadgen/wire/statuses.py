"""What an HTTP status is called in the closed list of outcomes.  It must not know connections or bodies."""

from loadgen.records import Outcome


def http_outcome(status: int) -> Outcome:
    """The closed list's word for an HTTP status."""
    if status in (429, 503):
        return Outcome.REJECTED
    if status >= 500:  # noqa: PLR2004 - server errors
        return Outcome.HTTP_5XX
    if status >= 400:  # noqa: PLR2004 - client errors
        return Outcome.HTTP_4XX
    return Outcome.OK if status < 300 else Outcome.PROTOCOL  # noqa: PLR2004 - redirects are not followed
