"""/v1/completions."""

import time

from aiohttp import web
from msgspec import UNSET, UnsetType

from ..frontend.collector import RequestOutputCollector
from ..frontend.outputs import RequestOutput
from ..tasks import all_of
from .calls import REQUEST_ID, Call, receive_call
from .generation import next_output, submitted, usage_of
from .protocol import CompletionRequest
from .responses import Completion, CompletionChoice, Usage
from .sse import EventStream


async def completions(request: web.Request) -> web.StreamResponse:
    """Complete one or several prompts, streamed or not."""
    call = await receive_call(request, CompletionRequest)
    prompts, params = call.body.prompts(), call.body.params()
    answer = _Answer(call)
    async with submitted(call.state, prompts, params, call.request_id) as collectors:
        if call.body.stream:
            return await answer.stream(request, collectors)
        outputs = [await next_output(call.state.engine, collector) for collector in collectors]
    choices = [answer.choice(index, output, first=True) for index, output in enumerate(outputs)]
    return call.reply(answer.event(choices, usage_of(outputs)))


class _Answer:
    """The reply to one call."""

    def __init__(self, call: Call[CompletionRequest]) -> None:
        self._call = call
        self._id = f"cmpl-{call.request_id}"
        self._created = int(time.time())
        self._latest: dict[int, RequestOutput] = {}

    async def stream(self, request: web.Request, collectors: list[RequestOutputCollector]) -> web.StreamResponse:
        """Send the choices' events as they come."""
        async with EventStream(request, {REQUEST_ID: self._call.request_id}) as events:
            parts = (self._send_choice(events, index, collector) for index, collector in enumerate(collectors))
            outputs = await all_of(parts)
            if self._call.include_usage:
                await events.send(self.event([], usage_of(outputs)))
        return events.response

    async def _send_choice(self, events: EventStream, index: int, collector: RequestOutputCollector) -> RequestOutput:
        first = True
        while True:
            output = await next_output(self._call.state.engine, collector)
            self._latest[index] = output
            if output.outputs[0].text or output.finished or self._call.wants_every_token:
                await events.send(self.event([self.choice(index, output, first=first)], self._usage_so_far()))
                first = False
            if output.finished:
                return output

    def _usage_so_far(self) -> Usage | UnsetType | None:
        if self._call.continuous_usage:
            return usage_of(self._latest.values())
        return None if self._call.include_usage else UNSET

    def choice(self, index: int, output: RequestOutput, *, first: bool) -> CompletionChoice:
        """A choice, or what is new in it; the prompt's ids go with the first."""
        completion = output.outputs[0]
        with_ids = self._call.body.return_token_ids
        return CompletionChoice(
            index=index,
            text=completion.text,
            finish_reason=completion.finish_reason,
            stop_reason=completion.stop_reason,
            token_ids=completion.token_ids if with_ids else UNSET,
            prompt_token_ids=output.prompt_token_ids if with_ids and first else UNSET,
        )

    def event(self, choices: list[CompletionChoice], usage: Usage | UnsetType | None) -> Completion:
        """The whole reply, or one event of the stream."""
        return Completion(id=self._id, created=self._created, model=self._call.model, choices=choices, usage=usage)
