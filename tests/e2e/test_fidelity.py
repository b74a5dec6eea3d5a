"""The engine's greedy tokens in float32 are those of transformers, alone, batched and under a small step budget."""

import asyncio
from collections.abc import Sequence

import pytest
import torch
from prompts import fidelity_prompts
from transformers import AutoModelForCausalLM

from ringpost import AsyncLLM, RequestOutputKind, SamplingParams

FULL = (16, 48)  # prompts, tokens of each answer
REDUCED = (4, 10)
SIZES = [pytest.param(REDUCED, id="reduced"), pytest.param(FULL, id="full", marks=pytest.mark.long)]
TIE = 1e-3  # a different token is excused only where the reference's two best logits lie this close

pytestmark = pytest.mark.asyncio(loop_factories=["uvloop"])  # which the tokens do not depend on


async def answer(engine: AsyncLLM, prompt: list[int], length: int) -> list[int]:
    params = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True, output_kind=RequestOutputKind.FINAL_ONLY)
    outputs = [output async for output in engine.generate(prompt, params)]
    assert len(outputs) == 1
    assert outputs[0].finished
    return list(outputs[0].outputs[0].token_ids)


def check_against_reference(model: torch.nn.Module, prompt: Sequence[int], tokens: Sequence[int]) -> None:
    """Each token is the reference's best one after the prompt and the tokens before it."""
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *tokens[:-1]]])).logits[0, len(prompt) - 1 :]
    best = logits.topk(2, dim=-1)
    for position, token in enumerate(tokens):
        values, ids = best.values[position], best.indices[position]
        tie = bool(values[0] - values[1] < TIE) and token == ids[1]
        assert token == ids[0] or tie, f"prompt of {len(prompt)}: token {position} is {token}, the reference has {ids[0]}"


@pytest.fixture(scope="module")
def reference(smollm2: str) -> torch.nn.Module:
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    assert isinstance(model, torch.nn.Module)
    return model.eval()


@pytest.mark.parametrize("size", SIZES)
async def test_alone_and_batched(no_leaks: None, reference: torch.nn.Module, size: tuple[int, int]) -> None:
    count, length = size
    prompts = fidelity_prompts(count)
    async with AsyncLLM.from_engine_args(dtype="float32", max_model_len=512, num_threads=1) as engine:
        alone = [await answer(engine, prompt, length) for prompt in prompts]
        together = await asyncio.gather(*(answer(engine, prompt, length) for prompt in prompts))
    for prompt, one, batched in zip(prompts, alone, together, strict=True):
        assert len(one) == len(batched) == length
        check_against_reference(reference, prompt, one)
        if batched != one:
            check_against_reference(reference, prompt, batched)


@pytest.mark.parametrize("size", SIZES)
async def test_in_small_steps(no_leaks: None, reference: torch.nn.Module, size: tuple[int, int]) -> None:
    count, length = size
    prompts = fidelity_prompts(count)
    async with AsyncLLM.from_engine_args(
        dtype="float32", max_model_len=512, num_threads=1, max_num_batched_tokens=64
    ) as engine:
        chunked = await asyncio.gather(*(answer(engine, prompt, length) for prompt in prompts))
    for prompt, tokens in zip(prompts, chunked, strict=True):
        assert len(tokens) == length
        check_against_reference(reference, prompt, tokens)
