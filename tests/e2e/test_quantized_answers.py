"""The demo model with quantised weights foretells texts as well as with dense ones, and mostly says the same."""

import pytest

from ringpost import AsyncLLM, RequestOutputKind, SamplingParams

pytestmark = pytest.mark.asyncio(loop_factories=["uvloop"])  # which the tokens do not depend on

TEXTS = (
    "The capital of France is Paris, and the capital of Italy is",
    "Water boils at one hundred degrees Celsius, and it freezes at",
    "Once upon a time, there was a little girl who lived in a small house near the forest with her",
    "To make a cup of tea, first boil some water, then put a tea bag into a cup and pour the hot",
    "The sun rises in the east and sets in the",
    "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday,",
)
PARAMS = SamplingParams(temperature=0, max_tokens=4, prompt_logprobs=0, output_kind=RequestOutputKind.FINAL_ONLY)


async def foretold(**options: str) -> tuple[list[tuple[int, ...]], float]:
    """The greedy tokens after each text, and the mean logprob of the texts' own."""
    answers, logprobs = [], []
    async with AsyncLLM.from_engine_args(max_model_len=512, enable_prefix_caching=False, **options) as engine:
        for text in TEXTS:
            async for output in engine.generate(text, PARAMS):
                assert output.prompt_token_ids is not None
                assert output.prompt_logprobs is not None
                answers.append(tuple(output.outputs[0].token_ids))
                entries = zip(output.prompt_token_ids, output.prompt_logprobs, strict=True)
                logprobs += [entry[token].logprob for token, entry in entries if entry is not None]
    return answers, sum(logprobs) / len(logprobs)


@pytest.mark.parametrize("quantization", ["int8", "int4"])
async def test_quantised_answers_are_close(no_leaks: None, quantization: str) -> None:
    (dense, usual), (small, found) = await foretold(), await foretold(quantization=quantization)
    assert sum(one[0] == other[0] for one, other in zip(dense, small, strict=True)) >= len(TEXTS) - 1
    assert sum(one == other for one, other in zip(dense, small, strict=True)) >= len(TEXTS) // 2
    assert found == pytest.approx(usual, abs=0.05)
