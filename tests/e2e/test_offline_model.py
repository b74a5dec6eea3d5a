"""LLM on the demo model: the same answers as AsyncLLM gives, and as one by one."""

import asyncio
from typing import Any

import pytest

from ringpost import LLM, AsyncLLM, Prompt, SamplingParams

PROMPTS: list[Prompt] = ["The capital of France is", "Once upon a time", "def fibonacci(n):", [504, 3575, 282, 4649, 314]]
PARAMS = [SamplingParams(temperature=0, max_tokens=10), *(SamplingParams(seed=seed, max_tokens=8) for seed in range(3))]
OPTIONS: dict[str, Any] = {"dtype": "float32", "max_model_len": 256, "num_blocks_override": 64, "num_threads": 1}


async def by_async_llm() -> list[str]:
    async with AsyncLLM.from_engine_args(**OPTIONS) as engine:
        texts = []
        for prompt, params in zip(PROMPTS, PARAMS, strict=True):
            *_, output = [output async for output in engine.generate(prompt, params)]
            texts.append(output.outputs[0].text)
        return texts


@pytest.mark.long
def test_a_batch_gives_the_answers_of_one_by_one(no_leaks: None, smollm2: str) -> None:
    with LLM(smollm2, **OPTIONS) as llm:
        outputs = llm.generate(PROMPTS, PARAMS)
        chat = llm.chat([{"role": "user", "content": "What is the capital of France?"}], PARAMS[0])
        assert "Paris" in chat[0].outputs[0].text
        with pytest.raises(ValueError, match=r"prompts\[1\]: prompt must not be empty"):
            llm.generate(["ok", ""])
        several = llm.generate("Once upon a time", SamplingParams(n=3, seed=5, max_tokens=4, logprobs=1))[0]
        assert [answer.index for answer in several.outputs] == [0, 1, 2]
    texts = [output.outputs[0].text for output in outputs]
    assert texts[0].startswith(" Paris")
    assert texts == asyncio.run(by_async_llm())


@pytest.mark.long
def test_bad_words_are_not_said(no_leaks: None, smollm2: str) -> None:
    """Neither at the start of a word nor behind a space, whatever speaks for them."""
    forced = {24098: 100.0}  # the word with its space
    with LLM(smollm2, **OPTIONS) as llm:
        says = llm.generate("Once upon a time", SamplingParams(temperature=0, max_tokens=4, logit_bias=forced))
        assert "exaggerated" in says[0].outputs[0].text
        params = SamplingParams(temperature=0, max_tokens=4, logit_bias=forced, bad_words=["exaggerated"])
        (output,) = llm.generate("Once upon a time", params)
        assert 24098 not in output.outputs[0].token_ids
        assert "exaggerated" not in output.outputs[0].text
