"""Words that are computed as they come, as from a speech recogniser: `python examples/transcript.py`.

When the last word has been said only the end is left to compute, so the answer begins at once, however long the speech.
"""

import asyncio
import time
from collections.abc import AsyncGenerator

from ringpost import AsyncLLM, RequestOutputKind, SamplingParams, StreamingInput

SPEECH = "The meeting began at nine. Anna said that the bridge is finished, Ben that the road to it is not. What did Ben say?"
BEGIN, END = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"  # as the demo model was trained
LISTEN = SamplingParams(max_tokens=1, temperature=0)  # one token is drawn, and does not stay in the context
ANSWER = SamplingParams(max_tokens=30, temperature=0, output_kind=RequestOutputKind.DELTA)


async def words(said: list[float]) -> AsyncGenerator[StreamingInput, None]:
    """Each word when it is said; `said` gets the moment of the last one."""
    yield StreamingInput(BEGIN, LISTEN)
    for word in SPEECH.split():
        await asyncio.sleep(0.1)  # the speaker speaks
        yield StreamingInput(f" {word}", LISTEN)
    said.append(time.monotonic())
    yield StreamingInput(END, ANSWER)


async def main() -> None:
    said: list[float] = []
    async with AsyncLLM() as engine:
        async for output in engine.generate(words(said)):
            if output.prompt != END:  # a word was computed
                continue
            print(output.outputs[0].text, end="", flush=True)
            if output.boundary is not None:
                waited = output.metrics.first_token_time - said[0]
                print(f"\n[first token {1000 * waited:.0f} ms after the last word]")


asyncio.run(main())
