"""LLM: a model for offline use: many prompts in, all answers out, from a program without an event loop."""

from collections.abc import Iterable, Sequence
from itertools import count
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from ...ipc.messages.config import EngineConfig
from ...ipc.messages.errors import ParameterError
from ...ipc.messages.outputs import EngineDescription
from ...ipc.messages.requests import PauseMode
from ...ipc.messages.sampling import RequestOutputKind, SamplingParams
from ..config import engine_config
from .input_processor import Prompt, TokensPrompt
from .llm_engine import LLMEngine
from .offline_engine import OfflineEngine, Prepared
from .outputs import RequestOutput
from .progress_bar import progress_of
from .submission import Submission

Conversation = Sequence[dict[str, Any]]
Params = SamplingParams | Sequence[SamplingParams] | None
T = TypeVar("T")


class LLM:
    """A model that answers prompts: `LLM(model="smollm2").generate(["Hello", "Once upon a time"])`.

    Works in scripts with or without a `__main__` guard, in notebooks, and where an event loop runs. The engine's processes end
    with `shutdown`, with the `with` block, when nothing refers to the LLM any more, and with the program.

    Attributes:
        llm_engine: the LLMEngine below, which takes requests one by one beside those of `generate`.
    """

    def __init__(self, model: str | None = None, *, config: EngineConfig | None = None, **options: Any) -> None:
        """Start the engine and wait until it can serve: with flat options as on the command line, or with a whole `config`.

        Raises ValueError for an option or a model that cannot be used, EngineStartError with the reason of a failed process.
        """
        if model is not None:
            options["model"] = model
        if config is not None and options:
            raise ValueError(f"config must be the only argument, got {', '.join(options)} beside it")
        self.llm_engine = LLMEngine(config if config is not None else engine_config(**options))
        self._ids = count()
        self._enqueued: list[Submission] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.shutdown()

    @property
    def _engine(self) -> OfflineEngine:
        return self.llm_engine.engine

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params = None,
        *,
        use_tqdm: bool = True,
        priority: int | Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """The answers to all prompts, in their order. A prompt is text, a list of token ids, or a dict of either.

        `sampling_params` and `priority` are for all of them, or lists with one for each; without params the model's own are
        taken. `use_tqdm` shows progress where standard error is a terminal.

        Raises ValueError for a wrong prompt or parameter, naming its index, before anything is sent; EngineGenerateError, with
        the index in a note, when a request fails in the engine; EngineDeadError when the engine dies. However it ends early,
        also by Ctrl-C, its requests are aborted, and the engine can be used on.
        """
        given = self._matched(prompts, sampling_params, priority)
        return self._engine.run(self._generate(given, shown=use_tqdm))

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: Params = None,
        *,
        use_tqdm: bool = True,
        priority: int | Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """The assistant's answers to one conversation, `[{"role": "user", "content": "Hi"}, ...]`, or a list of them, in order.

        The prompts are made by the model's chat template; the rest is as with `generate`.
        """
        return self.generate(self._rendered(messages), sampling_params, use_tqdm=use_tqdm, priority=priority)

    def _rendered(self, messages: Conversation | Sequence[Conversation]) -> list[TokensPrompt]:
        several = bool(messages) and not isinstance(messages[0], dict)
        conversations: Sequence[Any] = messages if several else [messages]
        return self._engine.run(self._render(conversations))

    async def _render(self, conversations: Sequence[Conversation]) -> list[TokensPrompt]:
        rendered = []
        for index, messages in enumerate(conversations):
            try:
                rendered.append(await self._engine.chat_prompt(messages))
            except ParameterError as error:
                raise _at(index, error) from None
        return rendered

    def enqueue(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params = None,
        *,
        priority: int | Sequence[int] | None = None,
    ) -> list[str]:
        """Send prompts and do not wait for their answers, which `wait_for_completion` returns; the ids of their requests.

        The arguments and errors are those of `generate`.
        """
        started: list[Submission] = []
        sending = self._start(self._matched(prompts, sampling_params, priority), started)
        self._engine.run(sending, undo=lambda: self._leave(started))
        self._enqueued += started
        return [submission.live.external_id for submission in started]

    def enqueue_chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: Params = None,
        *,
        priority: int | Sequence[int] | None = None,
    ) -> list[str]:
        """The same for one conversation or a list of them, as with `chat`."""
        return self.enqueue(self._rendered(messages), sampling_params, priority=priority)

    def wait_for_completion(self, *, use_tqdm: bool = True) -> list[RequestOutput]:
        """The answers to all that was enqueued since the last call, in order. Raises as `generate` does."""
        return self._engine.run(self._finish_enqueued(shown=use_tqdm))

    async def _finish_enqueued(self, *, shown: bool) -> list[RequestOutput]:
        enqueued, self._enqueued = self._enqueued, []
        return await self._finish(enqueued, shown=shown)

    def _matched(
        self, prompts: Prompt | Sequence[Prompt], sampling_params: Params, priority: int | Sequence[int] | None
    ) -> list[tuple[Prompt, SamplingParams, int]]:
        """Each prompt with its parameters, which ask for one output at the end, and its priority."""
        listed = _listed(prompts)
        params = sampling_params if sampling_params is not None else self.get_default_sampling_params()
        each_params = _each("sampling_params", params, len(listed))
        each_priority = _each("priority", 0 if priority is None else priority, len(listed))
        final = {id(one): _final(one) for one in each_params}
        return [(prompt, final[id(one)], rank) for prompt, one, rank in zip(listed, each_params, each_priority, strict=True)]

    async def _generate(self, given: list[tuple[Prompt, SamplingParams, int]], *, shown: bool) -> list[RequestOutput]:
        started: list[Submission] = []
        try:
            await self._start(given, started)
        except BaseException:
            self._leave(started)
            raise
        return await self._finish(started, shown=shown)

    async def _start(self, given: list[tuple[Prompt, SamplingParams, int]], started: list[Submission]) -> None:
        """Check them all, then send them all. Those that may have been sent are in `started`, for who has to leave them."""
        prepared: list[Prepared] = []
        try:
            for index, (prompt, params, priority) in enumerate(given):
                try:
                    prepared.append(await self._engine.prepare(str(next(self._ids)), prompt, params, priority))
                except ParameterError as error:
                    raise _at(index, error) from None
        except BaseException:
            self._engine.discard(prepared)
            raise
        started += [one.submission for one in prepared]
        for one in prepared:
            await self._engine.send(one)

    async def _finish(self, submissions: list[Submission], *, shown: bool) -> list[RequestOutput]:
        """Wait for the answers."""
        waiting = {submission.live: index for index, submission in enumerate(submissions)}
        outputs: dict[int, RequestOutput] = {}
        stats = self.llm_engine.stats
        try:
            with progress_of(len(submissions), lambda: stats.generation_tokens, shown=shown) as done:
                while waiting:
                    for submission in await self._engine.news(waiting):
                        index = waiting[submission.live]
                        output = _taken(submission, index)
                        if output is not None and output.finished:
                            outputs[index] = output
                            del waiting[submission.live]
                            self._engine.leave(submission)
                            done()
        finally:
            self._leave(submission for submission in submissions if submission.live in waiting)
        return [outputs[index] for index in range(len(submissions))]

    def _leave(self, submissions: Iterable[Submission]) -> None:
        for submission in submissions:
            self._engine.leave(submission)

    def get_default_sampling_params(self) -> SamplingParams:
        """The sampling parameters that are taken where none are given, as the model's generation_config.json has them."""
        return self.llm_engine.get_default_sampling_params()

    def get_tokenizer(self) -> Any:
        """The model's tokenizer as transformers has it. ValueError with `skip_tokenizer_init`."""
        return self.llm_engine.get_tokenizer()

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Empty the prefix cache; with `reset_running_requests`, compute running ones again. True: it is done."""
        return self.llm_engine.reset_prefix_cache(reset_running_requests)

    def describe(self) -> EngineDescription:
        """Numbers of the engine right now: requests running and waiting, blocks in all and free."""
        return self.llm_engine.describe()

    def pause_generation(self, mode: PauseMode = "abort", clear_cache: bool = True) -> None:
        """Compute nothing any more, until `resume_generation`; returns once nothing is in flight. See AsyncLLM."""
        self.llm_engine.pause_generation(mode, clear_cache)

    def resume_generation(self) -> None:
        """Go on after `pause_generation`."""
        self.llm_engine.resume_generation()

    def is_paused(self) -> bool:
        """Whether generation is paused."""
        return self.llm_engine.is_paused()

    def shutdown(self) -> None:
        """Stop the engine's processes and wait until they have ended. A second call does nothing."""
        self.llm_engine.shutdown()


def _listed(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """A list of prompts; one alone, also as a list of token ids, is a list of one."""
    if isinstance(prompts, str | dict):
        return [prompts]
    if not isinstance(prompts, Iterable):
        raise ParameterError(f"prompts must be a prompt or a list of them, got {prompts!r:.100}", "prompts")
    listed: list[Any] = list(prompts)
    return [listed] if listed and isinstance(listed[0], int) else listed


def _each(field: str, value: T | Sequence[T], prompts: int) -> list[T]:
    """One value for each prompt."""
    if not isinstance(value, list | tuple):
        return [value] * prompts  # type: ignore[list-item]
    if len(value) != prompts:
        raise ParameterError(f"{field} must have one entry for each of the {prompts} prompts, got {len(value)}", field)
    return list(value)


def _final(params: object) -> SamplingParams:
    """The same parameters, for one output at the end."""
    if not isinstance(params, SamplingParams):
        message = f"sampling_params must be SamplingParams, or a list of them, got {params!r:.100}"
        raise ParameterError(message, "sampling_params")
    return msgspec.structs.replace(params, output_kind=RequestOutputKind.FINAL_ONLY)


def _at(index: int, error: ParameterError) -> ParameterError:
    """The same error, with the place in the list that it is about."""
    return ParameterError(f"prompts[{index}]: {error}", error.parameter, error.code)


def _taken(submission: Submission, index: int) -> RequestOutput | None:
    try:
        return submission.collector.get_nowait()
    except Exception as error:
        error.add_note(f"prompts[{index}]")
        raise
