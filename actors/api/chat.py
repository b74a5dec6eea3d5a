"""/v1/chat/completions."""

from collections.abc import Sequence

import msgspec
from aiohttp import web
from msgspec import UnsetType

from .answers import Answer
from .calls import in_turns, receive_call
from .choices import Choice, News
from .logprobs import chat_logprobs
from .protocol import ChatCompletionRequest
from .responses import ChatChoice, ChatChunkChoice, ChatCompletion, ChatCompletionChunk, ChatLogprobs, Delta, Message, Usage


async def chat_completions(request: web.Request) -> web.StreamResponse:
    """Answer a conversation, streamed or not."""
    call = await receive_call(request, ChatCompletionRequest)
    with call.body.in_their_words():
        params = call.body.params(call.defaults)
        prompt = await call.state.engine.chat_prompt(call.body.conversation())
        return await _Answer(call).reply(request, [prompt], params)


class _Answer(Answer[ChatCompletionRequest]):
    id_prefix = "chatcmpl"

    async def whole(self, choices: Sequence[News], usage: Usage) -> ChatCompletion:
        prompt = choices[0].choice.prompt
        return ChatCompletion(
            id=self.id,
            created=self.created,
            model=self.call.model,
            choices=await in_turns(self._choice, choices),
            usage=usage,
            prompt_token_ids=self.ids(prompt.token_ids),
            prompt_logprobs=prompt.spelled,
        )

    def _choice(self, news: News) -> ChatChoice:
        completion = news.completion
        return ChatChoice(
            index=news.choice.index,
            message=Message(completion.text),
            logprobs=self._logprobs(news),
            finish_reason=completion.finish_reason,
            stop_reason=completion.stop_reason,
            token_ids=self.ids(completion.token_ids),
        )

    def first_events(self, choice: Choice, usage: Usage | UnsetType | None) -> list[msgspec.Struct]:
        """The role, and what there is about the prompt."""
        event = self._chunk([ChatChunkChoice(index=choice.index, delta=Delta(role="assistant", content=""))], usage)
        event.prompt_token_ids = self.ids(choice.prompt.token_ids)
        event.prompt_logprobs = choice.prompt.spelled
        return [event]

    def event(self, news: News, usage: Usage | UnsetType | None) -> ChatCompletionChunk:
        completion = news.completion
        choice = ChatChunkChoice(
            index=news.choice.index,
            delta=Delta(content=completion.text) if completion.text else Delta(),
            logprobs=self._logprobs(news),
            finish_reason=completion.finish_reason,
            stop_reason=completion.stop_reason,
            token_ids=self.ids(completion.token_ids),
        )
        return self._chunk([choice], usage)

    def usage_event(self, usage: Usage) -> ChatCompletionChunk:
        return self._chunk([], usage)

    def _logprobs(self, news: News) -> ChatLogprobs | None:
        completion, body = news.completion, self.call.body
        return chat_logprobs(
            completion.token_ids, completion.logprobs, body.top_logprobs or 0, as_ids=bool(body.return_tokens_as_token_ids)
        )

    def _chunk(self, choices: list[ChatChunkChoice], usage: Usage | UnsetType | None) -> ChatCompletionChunk:
        return ChatCompletionChunk(id=self.id, created=self.created, model=self.call.model, choices=choices, usage=usage)
