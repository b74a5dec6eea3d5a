"""Sending the prompts of one call to the engine, within the server's limit, and taking back what is not finished."""

from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager

import msgspec

from ...ipc.messages.errors import ParameterError
from ...ipc.messages.sampling import MAX_SEED, SamplingParams
from ..frontend.collector import RequestOutputCollector
from ..frontend.engine_client import EngineClient
from ..frontend.input_processor import Prompt
from .calls import Body, Call


@asynccontextmanager
async def submitted(
    call: Call[Body], prompts: Sequence[Prompt], params: SamplingParams
) -> AsyncIterator[list[RequestOutputCollector]]:
    """Have each prompt of a call answered `num_choices` times; leaving the block, however, aborts what is not finished.

    The choices of a prompt follow one another. Raises what is wrong with one of the prompts, and then none is answered.
    """
    state, body, num_choices = call.state, call.body, call.body.num_choices
    total = len(prompts) * num_choices
    if total > state.room:
        parameter = "n" if len(prompts) == 1 else "prompt"
        message = f"{parameter} asks for {total} answers, but this server takes at most {state.room} at once"
        raise ParameterError(message, parameter)
    state.require_room(total)
    if total > 1:  # all are checked, and each is tokenised once, before the first is sent
        prompts = [await _checked(state.engine, prompts, number, params) for number in range(len(prompts))]
    with ExitStack() as stack:
        collectors = []
        for index in range(total):
            state.require_room(1)
            number, choice = divmod(index, num_choices)
            collector = await state.engine.add_request(
                call.request_id if total == 1 else f"{call.request_id}-{index}",
                prompts[number],
                _params_of(params, choice),
                priority=body.priority or 0,
                cache_salt=body.cache_salt,
            )
            stack.callback(collector.close)
            collectors.append(collector)
        yield collectors


async def _checked(engine: EngineClient, prompts: Sequence[Prompt], number: int, params: SamplingParams) -> Prompt:
    try:
        return await engine.check_request(prompts[number], params)
    except ParameterError as error:
        if len(prompts) == 1:
            raise
        message = f"{error} (in prompt {number} of {len(prompts)})"
        raise ParameterError(message, error.parameter, error.code) from None


def _params_of(params: SamplingParams, choice: int) -> SamplingParams:
    """The parameters of one choice: with a seed, each has its own, and the same one the next time."""
    if choice == 0 or params.seed is None or params.seed < 0:
        return params
    return msgspec.structs.replace(params, seed=(params.seed + choice) % (MAX_SEED + 1))
