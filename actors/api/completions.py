"""/v1/completions."""

import asyncio
from collections.abc import Sequence

from aiohttp import web
from msgspec import UNSET, UnsetType

from ...ipc.messages.errors import ParameterError
from ..frontend.input_processor import Prompt
from .answers import Answer
from .calls import in_turns, receive_call
from .choices import News, PromptState
from .logprobs import completion_logprobs, joined
from .protocol import CompletionRequest
from .responses import Completion, CompletionChoice, CompletionLogprobs, Usage


async def completions(request: web.Request) -> web.StreamResponse:
    """Complete one or several prompts, streamed or not."""
    call = await receive_call(request, CompletionRequest)
    with call.body.in_their_words():
        if call.body.echo and call.state.engine.config.model.skip_tokenizer_init:
            raise ParameterError("echo must be false, got true: this engine has no tokenizer (skip_tokenizer_init)", "echo")
        return await _Answer(call).reply(request, call.body.prompts(), call.body.params(call.defaults))


class _Answer(Answer[CompletionRequest]):
    id_prefix = "cmpl"

    async def echo(self, given: Prompt, prompt: PromptState) -> None:
        """A special token is shown, unless the prompt was a text without it."""
        body, token_ids = self.call.body, prompt.token_ids
        if not body.echo:
            return
        engine = self.call.state.engine
        texts = await engine.token_texts(token_ids, skip_special_tokens=False)
        if isinstance(given, str) and "".join(texts) != given:
            texts = await engine.token_texts(token_ids, skip_special_tokens=True)
        prompt.text = "".join(texts)
        if body.wants_logprobs and prompt.logprobs:
            # An answer that was ended before the prompt was read has only some.
            places = [*prompt.logprobs, *[None] * (len(token_ids) - len(prompt.logprobs))]
            as_ids = bool(body.return_tokens_as_token_ids)
            prompt.echoed = await asyncio.to_thread(completion_logprobs, texts, token_ids, places, 0, as_ids=as_ids)

    async def whole(self, choices: Sequence[News], usage: Usage) -> Completion:
        return self._completion(await in_turns(self._choice, choices), usage)

    def event(self, news: News, usage: Usage | UnsetType | None) -> Completion:
        return self._completion([self._choice(news)], usage)

    def usage_event(self, usage: Usage) -> Completion:
        return self._completion([], usage)

    def _choice(self, news: News) -> CompletionChoice:
        """A choice, or what is new in it; what there is about the prompt goes with the first."""
        completion, prompt, first = news.completion, news.choice.prompt, not news.choice.begun
        return CompletionChoice(
            index=news.choice.index,
            text=prompt.text + completion.text if first else completion.text,
            logprobs=self._logprobs(news),
            finish_reason=completion.finish_reason,
            stop_reason=completion.stop_reason,
            token_ids=self.ids(completion.token_ids),
            prompt_token_ids=self.ids(prompt.token_ids) if first else UNSET,
            prompt_logprobs=prompt.spelled if first else UNSET,
        )

    def _logprobs(self, news: News) -> CompletionLogprobs | None:
        """Those of the new tokens, after those of an echoed prompt; None where there are none."""
        choice, completion = news.choice, news.completion
        echoed = None if choice.begun else choice.prompt.echoed
        if echoed is not None:
            choice.offset = len(choice.prompt.text)
        places = completion.logprobs or ()
        token_ids = completion.token_ids[: len(places)]
        texts = [place[token].decoded_token or "" for token, place in zip(token_ids, places, strict=True)]
        as_ids = bool(self.call.body.return_tokens_as_token_ids)
        told = completion_logprobs(texts, token_ids, places, choice.offset, as_ids=as_ids)
        choice.offset += sum(map(len, texts))
        if echoed is not None:
            told = joined(echoed, told)
        return told if told.tokens else None

    def _completion(self, choices: list[CompletionChoice], usage: Usage | UnsetType | None) -> Completion:
        return Completion(id=self.id, created=self.created, model=self.call.model, choices=choices, usage=usage)
