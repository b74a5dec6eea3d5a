"""Sending the prompts of one call to the engine, within the server's limit, and taking back what is not finished."""

from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager

import msgspec

from ...ipc.messages.errors import ParameterError
from ...ipc.messages.sampling import MAX_SEED, SamplingParams
from ..frontend.collector import RequestOutputCollector
from ..frontend.engine_client import EngineClient
from ..frontend.input_processor import Prompt
from .state import ApiState


@asynccontextmanager
async def submitted(
    state: ApiState, prompts: Sequence[Prompt], params: SamplingParams, num_choices: int, request_id: str
) -> AsyncIterator[list[RequestOutputCollector]]:
    """Have each prompt answered `num_choices` times; leaving the block, however, aborts what is not finished.

    The choices of a prompt follow one another. Raises what is wrong with one of the prompts, and then none is answered.
    """
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
            external_id = request_id if total == 1 else f"{request_id}-{index}"
            collector = await state.engine.add_request(external_id, prompts[number], _params_of(params, choice))
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
