"""A server of one file that streams answers as server-sent events: `python examples/sse_server.py [HOST:PORT]`, then
`curl -N -d '{"prompt": "Once upon a time"}' http://127.0.0.1:8001/generate`.

A client that leaves cancels its handler, and with it the request. `ringpost serve` is the whole OpenAI API instead.
"""

import json
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing

from aiohttp import web

from ringpost import AsyncLLM, RequestOutputKind, SamplingParams

ENGINE = web.AppKey("engine", AsyncLLM)
PARAMS = SamplingParams(temperature=0.7, top_p=0.9, max_tokens=40, output_kind=RequestOutputKind.DELTA)


async def run_engine(app: web.Application) -> AsyncIterator[None]:
    async with AsyncLLM.from_engine_args(model="smollm2") as engine:
        app[ENGINE] = engine
        yield


async def generate(request: web.Request) -> web.StreamResponse:
    try:
        prompt = (await request.json())["prompt"]
    except (ValueError, LookupError, TypeError):
        raise web.HTTPBadRequest(text='the body must be like {"prompt": "Once upon a time"}\n') from None
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    async with aclosing(request.app[ENGINE].generate(prompt, PARAMS)) as outputs:
        try:
            async for output in outputs:
                if not response.prepared:
                    await response.prepare(request)
                answer = output.outputs[0]
                event = {"text": answer.text, "finish_reason": answer.finish_reason}
                await response.write(b"data: %b\n\n" % json.dumps(event).encode())
        except ValueError as error:  # a prompt that the engine refuses, before anything was sent
            raise web.HTTPBadRequest(text=f"{error}\n") from None
    return response


if __name__ == "__main__":
    host, _, port = (sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8001").rpartition(":")
    app = web.Application()
    app.cleanup_ctx.append(run_engine)
    app.router.add_post("/generate", generate)
    web.run_app(app, host=host, port=int(port), handler_cancellation=True, shutdown_timeout=5)
