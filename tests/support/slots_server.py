"""A chat server with a few slots: each request waits for one, keeps it for an exponential time, and streams its tokens.

`python -m tests.support.slots_server [SLOTS] [MEAN_MS] [SECONDS]` prints its port and serves so long at most.
"""

import asyncio
import json
import random
import sys

from aiohttp import web

CHUNKS = 4


def make_app(slots=4, mean_s=0.04, seed=1):
    app, rng, free = web.Application(), random.Random(seed), asyncio.Semaphore(slots)

    async def chat(request):
        await request.json()
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        async with free:
            took, clock = rng.expovariate(1 / mean_s), asyncio.get_running_loop().time
            begin = clock()
            await asyncio.sleep(took / CHUNKS)
            await response.prepare(request)
            for i in range(CHUNKS):
                choice = {
                    "index": 0,
                    "delta": {"content": f" t{i}"},
                    "finish_reason": None if i < CHUNKS - 1 else "stop",
                }
                chunk = {
                    "id": "c",
                    "object": "chat.completion.chunk",
                    "created": 0,
                    "model": "slots",
                    "choices": [choice],
                }
                await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
                if i < CHUNKS - 1:
                    # until a moment, not for a time: late timers do not add up
                    await asyncio.sleep(max(0.0, begin + took * (i + 2) / CHUNKS - clock()))
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    async def models(_):
        return web.json_response({"object": "list", "data": [{"id": "slots", "object": "model"}]})

    app.router.add_post("/v1/chat/completions", chat)
    app.router.add_get("/v1/models", models)
    app.router.add_get("/health", lambda _: web.Response())
    return app


async def serve(slots, mean_s, seconds):
    runner = web.AppRunner(make_app(slots, mean_s))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.sleep(seconds)
    await runner.cleanup()


if __name__ == "__main__":
    given = [float(word) for word in sys.argv[1:]] + [4, 40, 600][len(sys.argv) - 1 :]
    asyncio.run(serve(int(given[0]), given[1] / 1000, given[2]))
