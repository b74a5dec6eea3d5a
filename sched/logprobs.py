"""The logprobs of a result, put into the deltas of the requests that they are of."""

from msgspec.structs import replace

from ..ipc.messages.outputs import TokenDelta
from ..ipc.messages.results import StepResult
from .batch import Batch
from .request import RequestState


def add_logprobs(deltas: list[TokenDelta], batch: Batch, result: StepResult) -> None:
    """Add to `deltas`, at most one a request, what the result of `batch` tells besides its tokens.

    A request without a token gets a delta without one, unless it has ended. Who has failed is told nothing more.
    """
    index_of = {delta.request: index for index, delta in enumerate(deltas)}
    for request, entry in zip(batch.sampled, result.logprobs, strict=False):  # they may be empty
        index = index_of.get(request.request_id)
        if entry is not None and index is not None and deltas[index].tokens:
            deltas[index] = replace(deltas[index], logprobs=[entry])
    for part in result.prompt_logprobs:
        request = batch.requests[part.index]
        index = index_of.get(request.request_id)
        if index is None and request.state is not RequestState.FINISHED:
            index = index_of[request.request_id] = len(deltas)
            deltas.append(request.delta(len(request.output), []))
        if index is not None and deltas[index].finish_reason != "error":
            deltas[index] = replace(deltas[index], prompt_logprobs=part.logprobs, prompt_start=part.start)
