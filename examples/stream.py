"""Three prompts at once, each streamed as it comes: `python examples/stream.py`."""

import asyncio

from ringpost import AsyncLLM, RequestOutputKind, SamplingParams

PROMPTS = ["The capital of France is", "Once upon a time", "def fibonacci(n):"]


async def answer(engine: AsyncLLM, prompt: str) -> None:
    params = SamplingParams(temperature=0.7, top_p=0.9, max_tokens=40, output_kind=RequestOutputKind.DELTA)
    async for output in engine.generate(prompt, params):
        print(f"[{prompt[:12]}...] {output.outputs[0].text!r}")


async def main() -> None:
    async with AsyncLLM.from_engine_args(model="smollm2") as engine, asyncio.TaskGroup() as tasks:
        for prompt in PROMPTS:
            tasks.create_task(answer(engine, prompt))


asyncio.run(main())
