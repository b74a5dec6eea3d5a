"""Sending the prompts of one call to the engine, within the server's limits, and taking back what is not finished."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager

from ...ipc.messages.errors import ParameterError
from ...ipc.messages.sampling import SamplingParams
from ..frontend.collector import RequestOutputCollector
from ..frontend.engine_client import EngineClient
from ..frontend.input_processor import Prompt, TokensPrompt
from .calls import Body, Call

MAX_PROMPT_LOGPROBS = 500_000  # in one reply, some 30 MB of it


@asynccontextmanager
async def submitted(
    call: Call[Body], prompts: Sequence[Prompt], params: SamplingParams
) -> AsyncIterator[list[RequestOutputCollector]]:
    """Have each prompt of a call answered `params.n` times; leaving the block, however, aborts what is not finished.

    There is a collector for each prompt. Raises what is wrong with one of the prompts, and then none is answered. Other
    calls get their turn between two prompts.
    """
    state, body = call.state, call.body
    total = len(prompts) * params.n
    if total > state.room:
        parameter = "n" if len(prompts) == 1 else "prompt"
        message = f"{parameter} asks for {total} answers, but this server takes at most {state.room} at once"
        raise ParameterError(message, parameter)
    state.require_room(total)
    if len(prompts) > 1 or params.prompt_logprobs is not None:
        prompts = await _checked(state.engine, prompts, params)
    with ExitStack() as stack:
        collectors = []
        for number, prompt in enumerate(prompts):
            state.require_room(params.n)
            collector = await state.engine.add_request(
                call.request_id if len(prompts) == 1 else f"{call.request_id}-{number}",
                prompt,
                params,
                priority=body.priority or 0,
                cache_salt=body.cache_salt,
            )
            stack.callback(collector.close)
            collectors.append(collector)
            await asyncio.sleep(0)
        yield collectors


async def _checked(engine: EngineClient, prompts: Sequence[Prompt], params: SamplingParams) -> list[TokensPrompt]:
    """The prompts of a call, each tokenised once, if the engine would take all of them."""
    checked = []
    for number, prompt in enumerate(prompts):
        try:
            checked.append(await engine.check_request(prompt, params))
        except ParameterError as error:
            if len(prompts) == 1:
                raise
            message = f"{error} (in prompt {number} of {len(prompts)})"
            raise ParameterError(message, error.parameter, error.code) from None
        await asyncio.sleep(0)
    if params.prompt_logprobs is not None:
        tokens = sum(len(prompt["prompt_token_ids"]) for prompt in checked)
        places = engine.config.checkpoint.vocab_size if params.prompt_logprobs == -1 else params.prompt_logprobs + 1
        _check_prompt_logprobs(tokens, places, params.n)
    return checked


def _check_prompt_logprobs(tokens: int, entries: int, times: int) -> None:
    """Whether the logprobs of so many prompt tokens, of so many entries each, can be told so many times."""
    total = tokens * entries * times
    if total > MAX_PROMPT_LOGPROBS:
        message = f"prompt_logprobs must ask for at most {MAX_PROMPT_LOGPROBS} entries in one reply, got {total}"
        raise ParameterError(f"{message}: {tokens} prompt tokens x {entries} entries x n={times}", "prompt_logprobs")
