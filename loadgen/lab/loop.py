"""The event loop that sends: uvloop where there is one."""

from __future__ import annotations

import asyncio


def new_loop() -> asyncio.AbstractEventLoop:
    """Without uvloop (no wheel for this platform) asyncio's own: slower, and run.json says which it was."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
