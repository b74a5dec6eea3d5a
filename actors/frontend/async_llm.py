"""AsyncLLM: the engine as an asyncio program sees it."""

from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Sequence
from functools import partial
from typing import Any, Self

from ...ipc.messages.config import EngineConfig
from ...ipc.messages.errors import ParameterError
from ...ipc.messages.sampling import SamplingParams
from ...model_runner.logits_processor import LogitsProcessor
from ..config import check_config, engine_config
from .collector import RequestOutputCollector
from .engine_life import EngineLife
from .input_processor import Prompt, TokensPrompt
from .outputs import RequestOutput
from .session import Session
from .streaming_input import Inputs, stream_outputs


class AsyncLLM(EngineLife):
    """An engine: its processes, started on first use or by `async with`, and the requests of this program.

    Made in any thread and before a loop runs; used from one event loop. The process that makes it supervises the engine:
    when it ends, however it ends, the engine's processes end too.
    """

    def __init__(self, config: EngineConfig | None = None, *, logits_processors: Sequence[LogitsProcessor] = ()) -> None:
        """Nothing is started yet. `config` need not be resolved. Raises ValueError for a value of a wrong type or range.

        `logits_processors` are objects, used after those that `config` names; with `single_process` only.
        """
        super().__init__(check_config(config if config is not None else EngineConfig()), logits_processors)

    @classmethod
    def from_engine_args(cls, **options: Any) -> Self:
        """An engine from flat options as on the command line: `from_engine_args(model="smollm2", max_num_seqs=32)`.

        `logits_processors` may hold objects too. Raises ValueError for an unknown option or a value out of range.
        """
        processors = options.get("logits_processors", ())
        ready = [one for one in processors if isinstance(one, LogitsProcessor)] if isinstance(processors, list | tuple) else []
        if ready:
            options["logits_processors"] = [one for one in processors if one not in ready]
        return cls(engine_config(**options), logits_processors=ready)

    async def add_request(
        self,
        request_id: str | None,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> RequestOutputCollector:
        """Send a request; its outputs come through the collector, whose `close` aborts it.

        With `scheduling_policy="priority"`, lower `priority` goes first. Prefixes are shared under an equal `cache_salt` only.
        Raises ValueError naming what is wrong with the request, EngineDeadError when the engine cannot serve. Cancelled or
        failed, it leaves no trace of the request. Several live requests may share one `request_id`.
        """
        await self.start()
        params = sampling_params if sampling_params is not None else self.get_default_sampling_params()
        submission = self._submitter.register(request_id, prompt, params, priority, cache_salt)
        try:
            tokens = await self._inputs.encode(submission.content)
            await self._inputs.settle(params)
            message = self._submitter.message(submission, tokens)
            if message is not None:
                await self._client.wait_open()
                if self._outputs.sending(submission.live, message):
                    await self._client.tell(message)
        except BaseException as error:
            self._submitter.give_up(submission, error)
            raise
        return submission.collector

    async def check_request(self, prompt: Prompt, sampling_params: SamplingParams) -> TokensPrompt:
        """The prompt as token ids, when `add_request` would take it with these parameters; nothing is sent.

        Raises ValueError naming what is wrong with the request, EngineDeadError when the engine cannot serve.
        """
        await self.start()
        return await self._inputs.tokens_of(prompt, sampling_params)

    def generate(
        self,
        prompt: Prompt | Inputs,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Stream the answer to a prompt: text, token ids, or a dict of either; the rest is as with `add_request`.

        Each output is cumulative, a delta, or only the last, by `sampling_params.output_kind`; the last one says `finished`.
        Leaving the loop, closing the generator or cancelling the task aborts the request and frees what it holds. Raises
        what `add_request` raises, EngineGenerateError when this request fails in the engine, and EngineDeadError when the
        engine dies, each after the outputs that came before it.

        With an async generator of StreamingInput for a prompt, it is a session (see `open_session`) which gets its input from
        that: the answer to each chunk ends with an output that has a `boundary`, and the last output of all says `finished`.
        What the generator raises is raised here as it is, as is what is wrong with a chunk, after the outputs that came before
        it; then and in every other end the generator is closed.
        """
        if isinstance(prompt, AsyncIterable):
            options: dict[str, Any] = {"priority": priority, "cache_salt": cache_salt}
            return stream_outputs(partial(self._open_for_generate, sampling_params, request_id, **options), prompt)
        return self._answer(prompt, sampling_params, request_id, priority, cache_salt)

    async def _answer(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None,
        request_id: str | None,
        priority: int,
        cache_salt: str | None,
    ) -> AsyncGenerator[RequestOutput, None]:
        given: object = prompt
        if not isinstance(given, str | list | tuple | dict):
            forms = "text, a list of token ids, a dict of either, or an async generator of StreamingInput"
            raise ParameterError(f"prompt must be {forms}, got {given!r:.100}", "prompt")
        collector = await self.add_request(request_id, prompt, sampling_params, priority=priority, cache_salt=cache_salt)
        try:
            finished = False
            while not finished:
                output = await collector.get()
                finished = output.finished
                yield output
        finally:
            collector.close()

    async def _open_for_generate(self, params: SamplingParams | None, request_id: str | None, **options: Any) -> Session:
        await self.start()
        external_id = self._inputs.check_request_id(request_id)  # whose errors name what the caller of `generate` gave
        return await self.open_session(params, external_id, **options)

    async def open_session(
        self,
        sampling_params: SamplingParams | None = None,
        session_id: str | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        idle_timeout: float | None = None,
    ) -> Session:
        """A session: a conversation whose input arrives while answers are made. Close it, or use `async with`.

        `sampling_params` are those of chunks that bring none; they must have n=1 and no prompt_logprobs. The session ends with
        SessionTimeout after `idle_timeout` seconds (None: the engine's session_idle_timeout) in which no input came, no answer
        was made and no output taken. `session_id`, `priority` and `cache_salt` are for all its turns as in `add_request`.
        Raises ValueError naming what is wrong, TooManySessions, EngineDeadError when the engine cannot serve.
        """
        await self.start()
        params = sampling_params if sampling_params is not None else self.get_default_sampling_params()
        assert self._sessions is not None
        return self._sessions.open(params, session_id, priority=priority, cache_salt=cache_salt, idle_timeout=idle_timeout)

    async def chat_prompt(self, messages: Sequence[dict[str, Any]]) -> TokensPrompt:
        """The prompt for a conversation, `[{"role": "user", "content": "Hi"}, ...]`, by the model's own chat template.

        Raises ValueError when the model has no template or the template refuses the messages.
        """
        await self.start()
        return {"prompt_token_ids": await self._renderer.encode_chat(messages)}

    async def token_ids(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The tokens of a text, with those before and behind it that the tokenizer gives to a whole prompt, or without.

        Raises ParameterError for a text that is no valid Unicode or can never fit the context, and where there is no tokenizer;
        EngineStartError when the engine does not start.
        """
        await self.start()
        return await self._renderer.encode(text, add_special_tokens=add_special_tokens)

    async def token_texts(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> list[str]:
        """What each of these tokens adds to their text: joined, they are it. A token inside a character adds nothing.

        Raises ParameterError where there is no tokenizer, EngineStartError when the engine does not start.
        """
        await self.start()
        return await self._renderer.token_texts(token_ids, skip_special_tokens=skip_special_tokens)

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End every live request and session with one of these ids; its consumer gets a last output with reason "abort"."""
        ids = {request_id} if isinstance(request_id, str) else set(request_id)
        if self._sessions is not None:
            self._sessions.abort(ids)
        for live in self._outputs.requests_of(ids):
            for number in self._outputs.abort(live):
                self._client.abort(number)

    async def get_tokenizer(self) -> Any:
        """The model's tokenizer as transformers has it. ValueError with `skip_tokenizer_init`, and what `start` raises."""
        await self.start()
        return await self._renderer.get_tokenizer()

    async def do_log_stats(self) -> None:
        """Log a line of throughput and queues now, at level info."""
        self._stats_log.log()


AsyncLLMEngine = AsyncLLM  # the other name that vLLM has for it
