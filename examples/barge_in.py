"""Type while the model answers: `python examples/barge_in.py`. A new line stops the answer; Ctrl-D ends the program.

The conversation is one session: nothing of it is computed twice, and the model knows how far its answer was shown.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import suppress

from ringpost import AsyncLLM, RequestOutputKind, SamplingParams, Session

TURN = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"  # as the demo model was trained
END = "<|im_end|>\n"  # of an answer; the token that ended it is not in the context


async def readable(file: int) -> None:
    """Wait until there is something to read. A thread that waits in `read` could not be stopped."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    with suppress(PermissionError):  # a file or /dev/null, which nobody ever has to wait for
        loop.add_reader(file, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(file)


async def typed() -> AsyncIterator[str]:
    """The lines of standard input, be it a terminal, a pipe or a file, while others run."""
    file, begun = sys.stdin.fileno(), b""
    while True:
        await readable(file)
        data = os.read(file, 1 << 16)
        *lines, begun = (begun + (data or b"\n")).split(b"\n")  # the end of all ends the last line too
        for line in lines:
            if line.strip():
                yield line.decode(errors="replace").strip()
        if not data:
            return


async def listen(session: Session) -> None:
    """Make each line the next chunk of input, at once."""
    async for line in typed():
        session.interrupt()  # keeps what has been shown
        await session.append((END if session.context_length else "") + TURN.format(line))
    session.finish()


async def main() -> None:
    params = SamplingParams(temperature=0, max_tokens=200, output_kind=RequestOutputKind.DELTA)
    async with AsyncLLM() as engine, await engine.open_session(params) as session, asyncio.TaskGroup() as tasks:
        print("Ready: type a line, and another one to stop the answer; Ctrl-D ends the program.", flush=True)
        tasks.create_task(listen(session))
        async for output in session:
            print(output.outputs[0].text, end="", flush=True)
            if output.boundary is not None:
                print(f"\n[{output.boundary.finish_reason}; {output.boundary.context_length} tokens so far]", flush=True)


with suppress(KeyboardInterrupt):
    asyncio.run(main())
