"""/v1/chat/completions."""

from collections.abc import Sequence

import msgspec
from aiohttp import web
from msgspec import UnsetType

from ...ipc.messages.errors import ParameterError
from ..frontend.outputs import RequestOutput
from .answers import Answer
from .calls import receive_call
from .protocol import ChatCompletionRequest
from .responses import ChatChoice, ChatChunkChoice, ChatCompletion, ChatCompletionChunk, Delta, Message, Usage


async def chat_completions(request: web.Request) -> web.StreamResponse:
    """Answer a conversation, streamed or not."""
    call = await receive_call(request, ChatCompletionRequest)
    params = call.body.params()
    try:
        prompt = await call.state.engine.chat_prompt(call.body.conversation())
        return await _Answer(call).reply(request, [prompt], params)
    except ParameterError as error:  # the client knows no prompt
        parameter = "messages" if error.parameter == "prompt" else error.parameter
        raise ParameterError(str(error), parameter, error.code) from None


class _Answer(Answer[ChatCompletionRequest]):
    id_prefix = "chatcmpl"

    def whole(self, outputs: Sequence[RequestOutput], usage: Usage) -> ChatCompletion:
        return ChatCompletion(
            id=self.id,
            created=self.created,
            model=self.call.model,
            choices=[self._choice(index, output) for index, output in enumerate(outputs)],
            usage=usage,
            prompt_token_ids=self.ids(outputs[0].prompt_token_ids),
        )

    def _choice(self, index: int, output: RequestOutput) -> ChatChoice:
        completion = output.outputs[0]
        return ChatChoice(
            index=index,
            message=Message(completion.text),
            finish_reason=completion.finish_reason,
            stop_reason=completion.stop_reason,
            token_ids=self.ids(completion.token_ids),
        )

    def first_events(self, index: int, output: RequestOutput, usage: Usage | UnsetType | None) -> list[msgspec.Struct]:
        """The role."""
        event = self._chunk([ChatChunkChoice(index=index, delta=Delta(role="assistant", content=""))], usage)
        event.prompt_token_ids = self.ids(output.prompt_token_ids)
        return [event]

    def event(self, index: int, output: RequestOutput, *, first: bool, usage: Usage | UnsetType | None) -> ChatCompletionChunk:
        completion = output.outputs[0]
        choice = ChatChunkChoice(
            index=index,
            delta=Delta(content=completion.text) if completion.text else Delta(),
            finish_reason=completion.finish_reason,
            stop_reason=completion.stop_reason,
            token_ids=self.ids(completion.token_ids),
        )
        return self._chunk([choice], usage)

    def usage_event(self, usage: Usage) -> ChatCompletionChunk:
        return self._chunk([], usage)

    def _chunk(self, choices: list[ChatChunkChoice], usage: Usage | UnsetType | None) -> ChatCompletionChunk:
        return ChatCompletionChunk(id=self.id, created=self.created, model=self.call.model, choices=choices, usage=usage)
