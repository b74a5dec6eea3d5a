"""/v1/chat/completions."""

import time

from aiohttp import web
from msgspec import UNSET, UnsetType

from ...ipc.messages.errors import ParameterError
from ..frontend.collector import RequestOutputCollector
from ..frontend.outputs import RequestOutput
from .calls import REQUEST_ID, Call, receive_call
from .generation import next_output, submitted, usage_of
from .protocol import ChatCompletionRequest
from .responses import ChatChoice, ChatChunkChoice, ChatCompletion, ChatCompletionChunk, Delta, Message, TokenIds, Usage
from .sse import EventStream


async def chat_completions(request: web.Request) -> web.StreamResponse:
    """Answer a conversation, streamed or not."""
    call = await receive_call(request, ChatCompletionRequest)
    params = call.body.params()
    answer = _Answer(call)
    prompt = await call.state.engine.chat_prompt(call.body.conversation())
    try:
        async with submitted(call.state, [prompt], params, call.request_id) as (collector,):
            if call.body.stream:
                return await answer.stream(request, collector)
            output = await next_output(call.state.engine, collector)
    except ParameterError as error:
        param = "messages" if error.parameter == "prompt" else error.parameter
        raise ParameterError(str(error), param, error.code) from None
    return call.reply(answer.whole(output))


class _Answer:
    """The reply to one call."""

    def __init__(self, call: Call[ChatCompletionRequest]) -> None:
        self._call = call
        self._id = f"chatcmpl-{call.request_id}"
        self._created = int(time.time())

    def whole(self, output: RequestOutput) -> ChatCompletion:
        """The reply that is not streamed."""
        completion = output.outputs[0]
        choice = ChatChoice(
            index=0,
            message=Message(completion.text),
            finish_reason=completion.finish_reason,
            stop_reason=completion.stop_reason,
            token_ids=self._ids(completion.token_ids),
        )
        return ChatCompletion(
            id=self._id,
            created=self._created,
            model=self._call.model,
            choices=[choice],
            usage=usage_of([output]),
            prompt_token_ids=self._ids(output.prompt_token_ids),
        )

    async def stream(self, request: web.Request, collector: RequestOutputCollector) -> web.StreamResponse:
        """Send the answer's events as they come, the role before the first."""
        async with EventStream(request, {REQUEST_ID: self._call.request_id}) as events:
            role = [self._first_event]
            finished = False
            while not finished:
                output = await next_output(self._call.state.engine, collector)
                finished = output.finished
                if output.outputs[0].text or finished or self._call.wants_every_token:
                    await events.send(*[make(output) for make in role], self._event([self._choice(output)], output))
                    role = []
            if self._call.include_usage:
                await events.send(self._event([], output, usage_of([output])))
        return events.response

    def _first_event(self, output: RequestOutput) -> ChatCompletionChunk:
        event = self._event([ChatChunkChoice(index=0, delta=Delta(role="assistant", content=""))], output)
        event.prompt_token_ids = self._ids(output.prompt_token_ids)
        return event

    def _choice(self, output: RequestOutput) -> ChatChunkChoice:
        completion = output.outputs[0]
        return ChatChunkChoice(
            index=0,
            delta=Delta(content=completion.text) if completion.text else Delta(),
            finish_reason=completion.finish_reason,
            stop_reason=completion.stop_reason,
            token_ids=self._ids(completion.token_ids),
        )

    def _event(
        self, choices: list[ChatChunkChoice], output: RequestOutput, usage: Usage | UnsetType | None = UNSET
    ) -> ChatCompletionChunk:
        if usage is UNSET and self._call.continuous_usage:
            usage = usage_of([output])
        elif usage is UNSET and self._call.include_usage:
            usage = None
        return ChatCompletionChunk(id=self._id, created=self._created, model=self._call.model, choices=choices, usage=usage)

    def _ids(self, token_ids: list[int]) -> TokenIds:
        return token_ids if self._call.body.return_token_ids else UNSET
