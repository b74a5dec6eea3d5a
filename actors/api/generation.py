"""What both generating routes do with the engine: send the prompts of one call, count, and clean up."""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import ExitStack, asynccontextmanager

from ...ipc.messages.errors import ParameterError
from ...ipc.messages.sampling import SamplingParams
from ..errors import EngineDeadError
from ..frontend.collector import RequestOutputCollector
from ..frontend.engine_client import EngineClient
from ..frontend.input_processor import Prompt
from ..frontend.outputs import RequestOutput
from .errors import Overloaded
from .responses import PromptTokensDetails, Usage
from .state import ApiState


@asynccontextmanager
async def submitted(
    state: ApiState, prompts: Sequence[Prompt], params: SamplingParams, request_id: str
) -> AsyncIterator[list[RequestOutputCollector]]:
    """Send every prompt of a call to the engine; leaving the block, however, aborts what is not finished.

    Raises what is wrong with one of them, and then none is answered.
    """
    room = state.engine.config.scheduler.max_num_seqs + state.config.max_num_queued_reqs
    if len(prompts) > room:
        raise ParameterError(f"prompt holds {len(prompts)} prompts, but this server takes at most {room} at once", "prompt")
    with ExitStack() as stack:
        collectors = []
        for index in range(len(prompts)):
            if state.engine.num_unfinished_requests >= room:
                raise Overloaded(f"{room} requests run and wait already, as many as this server takes; try again later")
            collector = await _add(state.engine, prompts, index, params, request_id)
            stack.callback(collector.close)
            collectors.append(collector)
        yield collectors


async def _add(
    engine: EngineClient, prompts: Sequence[Prompt], index: int, params: SamplingParams, request_id: str
) -> RequestOutputCollector:
    if len(prompts) == 1:
        return await engine.add_request(request_id, prompts[0], params)
    try:
        return await engine.add_request(f"{request_id}-{index}", prompts[index], params)
    except ParameterError as error:
        raise ParameterError(f"{error} (in prompt {index} of {len(prompts)})", error.parameter, error.code) from None


async def next_output(engine: EngineClient, collector: RequestOutputCollector) -> RequestOutput:
    """The next output of a request; an answer cut off by the engine's shutdown is an error, not an answer."""
    output = collector.get_nowait() or await collector.get()
    if output.outputs[0].finish_reason == "abort" and engine.errored:
        raise EngineDeadError("the server was shut down before the answer was complete")
    return output


def usage_of(outputs: Iterable[RequestOutput]) -> Usage:
    """Tokens of these requests, by the latest output of each."""
    prompt = completion = cached = 0
    for output in outputs:
        prompt += len(output.prompt_token_ids)
        completion += output.metrics.num_generation_tokens
        cached += output.num_cached_tokens
    return Usage(prompt, completion, prompt + completion, PromptTokensDetails(cached))
