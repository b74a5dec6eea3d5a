"""Type while the model answers: `python examples/barge_in.py`. A new line stops the answer; Ctrl-D ends the program.

The conversation is one session: nothing of it is computed twice, and the model knows how far its answer was shown.
"""

import asyncio
import sys
from collections.abc import AsyncIterator

from ringpost import AsyncLLM, RequestOutputKind, SamplingParams, Session

TURN = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"  # as the demo model was trained
END = "<|im_end|>\n"  # of an answer; the token that ended it is not in the context


async def typed() -> AsyncIterator[str]:
    """The lines of standard input, while others run."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    try:
        while line := await reader.readline():
            if line.strip():
                yield line.decode().strip()
    finally:
        transport.close()


async def listen(session: Session) -> None:
    """Make each line the next chunk of input, at once."""
    async for line in typed():
        session.interrupt()  # keeps what has been shown
        await session.append((END if session.context_length else "") + TURN.format(line))
    session.finish()


async def main() -> None:
    params = SamplingParams(temperature=0, max_tokens=200, output_kind=RequestOutputKind.DELTA)
    async with AsyncLLM() as engine, await engine.open_session(params) as session, asyncio.TaskGroup() as tasks:
        tasks.create_task(listen(session))
        async for output in session:
            print(output.outputs[0].text, end="", flush=True)
            if output.boundary is not None:
                print(f"\n[{output.boundary.finish_reason}; {output.boundary.context_length} tokens so far]", flush=True)


asyncio.run(main())
