"""The reply to one call of a generating route, whole or as a stream of events, whatever the route's forms are."""

import asyncio
import time
from collections.abc import Sequence
from typing import ClassVar, Generic

import msgspec
from aiohttp import web
from msgspec import UNSET, UnsetType

from ...ipc.messages.sampling import SamplingParams
from ..frontend.collector import RequestOutputCollector
from ..frontend.input_processor import Prompt
from ..frontend.outputs import CompletionOutput, RequestOutput
from ..tasks import all_of
from .calls import REQUEST_ID, Body, Call
from .choices import Choice, News, PromptState, usage_of
from .errors import ServerStopping
from .logprobs import prompt_logprobs
from .responses import TokenIds, Usage
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

    async def whole(self, choices: Sequence[News], usage: Usage) -> msgspec.Struct:
        """The reply that is not streamed."""
        raise NotImplementedError

    def first_events(self, choice: Choice, usage: Usage | UnsetType | None) -> list[msgspec.Struct]:
        """What goes before the first news of a choice."""
        return []

    def event(self, news: News, usage: Usage | UnsetType | None) -> msgspec.Struct:
        """The news of a choice."""
        raise NotImplementedError

    def usage_event(self, usage: Usage) -> msgspec.Struct:
        """The last event of a stream that was asked for usage."""
        raise NotImplementedError

    async def echo(self, given: Prompt, prompt: PromptState) -> None:
        """Set what the reply is to hold of the text of a prompt."""

    async def reply(self, request: web.Request, prompts: Sequence[Prompt], params: SamplingParams) -> web.StreamResponse:
        """Answer the prompts. Cancelled, it leaves nothing in the engine."""
        async with submitted(self.call, prompts, params) as collectors:
            if self.call.body.stream:
                return await self._stream(request, prompts, collectors)
            outputs = await all_of(next_output(self.call.state, collector) for collector in collectors)
        states = [await self._prompt(prompt, output) for prompt, output in zip(prompts, outputs, strict=True)]
        choices = [
            self._news(number, prompt, completion)
            for number, (prompt, output) in enumerate(zip(states, outputs, strict=True))
            for completion in output.outputs
        ]
        return self.call.reply(await self.whole(choices, self._usage(states)))

    async def _stream(
        self, request: web.Request, prompts: Sequence[Prompt], collectors: Sequence[RequestOutputCollector]
    ) -> web.StreamResponse:
        async with EventStream(request, {REQUEST_ID: self.call.request_id}) as events:
            with self.call.body.in_their_words():
                states = await all_of(
                    self._send(events, number, prompt, collector)
                    for number, (prompt, collector) in enumerate(zip(prompts, collectors, strict=True))
                )
            if self.call.include_usage:
                await events.send(self.usage_event(self._usage(states)))
        return events.response

    async def _send(self, events: EventStream, number: int, given: Prompt, collector: RequestOutputCollector) -> PromptState:
        """Send the answers to one prompt as they come."""
        prompt: PromptState | None = None
        while True:
            output = await next_output(self.call.state, collector)
            prompt = prompt or await self._prompt(given, output)
            news = [self._news(number, prompt, completion) for completion in output.outputs]
            if told := [event for one in news if self._worth_an_event(one) for event in self._events(one)]:
                await events.send(*told)
            if output.finished:
                return prompt

    async def _prompt(self, given: Prompt, output: RequestOutput) -> PromptState:
        prompt = PromptState.of(output)
        await self.echo(given, prompt)
        if self.call.body.prompt_logprobs is not None and prompt.logprobs is not None:
            prompt.spelled = await asyncio.to_thread(prompt_logprobs, prompt.logprobs)
        await asyncio.sleep(0)  # of many prompts; other calls get their turn
        return prompt

    def _news(self, number: int, prompt: PromptState, completion: CompletionOutput) -> News:
        """What a completion brings of its choice."""
        body = self.call.body
        if not body.wants_answer:
            reason = "length" if completion.finish_reason == "stop" else completion.finish_reason
            completion = CompletionOutput(completion.index, "", [], finish_reason=reason)
        choice = prompt.choices.get(completion.index)
        if choice is None:
            choice = prompt.choices[completion.index] = Choice(number * body.num_choices + completion.index, prompt)
        choice.num_tokens += len(completion.token_ids)
        return News(choice, completion)

    def _worth_an_event(self, news: News) -> bool:
        completion = news.completion
        return bool(completion.text or completion.finished or completion.logprobs or self.call.wants_every_token)

    def _events(self, news: News) -> list[msgspec.Struct]:
        choice = news.choice
        usage: Usage | UnsetType | None = None if self.call.include_usage else UNSET
        if self.call.continuous_usage:
            usage = usage_of([choice.prompt], choice.num_tokens)
        before = [] if choice.begun else self.first_events(choice, usage)
        event = self.event(news, usage)
        choice.begun = True
        return [*before, event]

    def _usage(self, prompts: Sequence[PromptState]) -> Usage:
        return usage_of(prompts, sum(prompt.num_tokens for prompt in prompts))

    def ids(self, token_ids: Sequence[int]) -> TokenIds:
        """Token ids for a client that asked for them."""
        return list(token_ids) if self.call.body.return_token_ids else UNSET


async def next_output(state: ApiState, collector: RequestOutputCollector) -> RequestOutput:
    """The next output of a request; an answer cut off by the engine's shutdown is an error, not an answer."""
    output = await collector.get()
    if state.engine.errored and any(completion.finish_reason == "abort" for completion in output.outputs):
        raise ServerStopping("the server was shut down before the answer was complete")
    return output
