"""The reply to one call of a generating route, whole or as a stream of events, whatever the route's forms are."""

import time
from collections.abc import Mapping, Sequence
from typing import ClassVar, Generic

import msgspec
from aiohttp import web
from msgspec import UNSET, UnsetType

from ...ipc.messages.sampling import SamplingParams
from ..frontend.collector import RequestOutputCollector
from ..frontend.input_processor import Prompt
from ..frontend.outputs import RequestOutput
from ..tasks import all_of
from .calls import REQUEST_ID, Body, Call
from .errors import ServerStopping
from .responses import PromptTokensDetails, TokenIds, Usage
from .sse import EventStream
from .state import ApiState
from .submission import submitted


class Answer(Generic[Body]):
    """Asks the engine and replies. A route says how a choice and an event look."""

    id_prefix: ClassVar[str]

    def __init__(self, call: Call[Body]) -> None:
        self.call = call
        self.id = f"{self.id_prefix}-{call.request_id}"
        self.created = int(time.time())

    def whole(self, outputs: Sequence[RequestOutput], usage: Usage) -> msgspec.Struct:
        """The reply that is not streamed."""
        raise NotImplementedError

    def first_events(self, index: int, output: RequestOutput, usage: Usage | UnsetType | None) -> list[msgspec.Struct]:
        """What goes before the first news of a choice."""
        return []

    def event(self, index: int, output: RequestOutput, *, first: bool, usage: Usage | UnsetType | None) -> msgspec.Struct:
        """The news of a choice."""
        raise NotImplementedError

    def usage_event(self, usage: Usage) -> msgspec.Struct:
        """The last event of a stream that was asked for usage."""
        raise NotImplementedError

    async def reply(self, request: web.Request, prompts: Sequence[Prompt], params: SamplingParams) -> web.StreamResponse:
        """Answer the prompts. Cancelled, it leaves nothing in the engine."""
        async with submitted(self.call, prompts, params) as collectors:
            if self.call.body.stream:
                return await self._stream(request, collectors)
            outputs = await all_of(next_output(self.call.state, collector) for collector in collectors)
        return self.call.reply(self.whole(outputs, self._usage(dict(enumerate(outputs)))))

    async def _stream(self, request: web.Request, collectors: list[RequestOutputCollector]) -> web.StreamResponse:
        async with EventStream(request, {REQUEST_ID: self.call.request_id}) as events:
            outputs = await all_of(self._send_choice(events, index, collector) for index, collector in enumerate(collectors))
            if self.call.include_usage:
                await events.send(self.usage_event(self._usage(dict(enumerate(outputs)))))
        return events.response

    async def _send_choice(self, events: EventStream, index: int, collector: RequestOutputCollector) -> RequestOutput:
        first = True
        while True:
            output = await next_output(self.call.state, collector)
            if output.outputs[0].text or output.finished or self.call.wants_every_token:
                usage = self._usage_so_far(index, output)
                before = self.first_events(index, output, usage) if first else []
                await events.send(*before, self.event(index, output, first=first, usage=usage))
                first = False
            if output.finished:
                return output

    def _usage_so_far(self, index: int, output: RequestOutput) -> Usage | UnsetType | None:
        """What an event of a choice says about usage: the choice's own so far, where the client asked for it."""
        if self.call.continuous_usage:
            return self._usage({index: output})
        return None if self.call.include_usage else UNSET

    def _usage(self, outputs: Mapping[int, RequestOutput]) -> Usage:
        """Tokens of these choices; a prompt counts once, however many choices it has.

        Choices find each other's prompt in the cache. What counts as cached is what was there before the first of them.
        """
        lengths: dict[int, int] = {}
        found: dict[int, int] = {}
        for index, output in outputs.items():
            number = index // self.call.body.num_choices
            lengths[number] = len(output.prompt_token_ids)
            found[number] = min(found.get(number, lengths[number]), output.num_cached_tokens)
        prompt, cached = sum(lengths.values()), sum(found.values())
        completion = sum(output.metrics.num_generation_tokens for output in outputs.values())
        return Usage(prompt, completion, prompt + completion, PromptTokensDetails(cached))

    def ids(self, token_ids: list[int]) -> TokenIds:
        """Token ids for a client that asked for them."""
        return token_ids if self.call.body.return_token_ids else UNSET


async def next_output(state: ApiState, collector: RequestOutputCollector) -> RequestOutput:
    """The next output of a request; an answer cut off by the engine's shutdown is an error, not an answer."""
    output = collector.get_nowait() or await collector.get()
    if output.outputs[0].finish_reason == "abort" and state.engine.errored:
        raise ServerStopping("the server was shut down before the answer was complete")
    return output
