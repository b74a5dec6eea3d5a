"""LLMEngine: an engine driven step by step from a program without an event loop."""

import atexit
import weakref
from collections import deque
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

from ...ipc.messages.config import EngineConfig
from ...ipc.messages.outputs import EngineDescription
from ...ipc.messages.requests import PauseMode
from ...ipc.messages.sampling import SamplingParams
from ..config import check_config, engine_config
from ..supervisor import ProcessInfo
from .input_processor import Prompt
from .live_request import LiveRequest
from .offline_engine import OfflineEngine
from .outputs import RequestOutput
from .stats import FrontendStats
from .submission import Submission


class LLMEngine:
    """An engine, which runs as soon as it is made, and the requests of this program.

    Use it from one thread; others that call it wait for their turn. When it is shut down, no longer referred to, or the program
    ends, the engine's processes end too.
    """

    def __init__(self, config: EngineConfig | None = None) -> None:
        """Start the engine and wait until it can serve. `config` need not be resolved.

        Raises ValueError for a value or a model that cannot be used, EngineStartError with the reason of a process that failed.
        """
        self.engine = OfflineEngine(check_config(config if config is not None else EngineConfig()))
        self._submissions: dict[str, Submission] = {}
        self._live: set[LiveRequest] = set()  # the same
        self._came: deque[tuple[Submission, RequestOutput | Exception]] = deque()  # for `step` to hand over
        self._shut_down = weakref.finalize(self, self.engine.shutdown)
        # The finalizer's own turn at the program's end may come after multiprocessing has killed the processes.
        self._shut_down.atexit = False
        atexit.register(self._shut_down)

    @classmethod
    def from_engine_args(cls, **options: Any) -> Self:
        """An engine from flat options as on the command line: `from_engine_args(model="smollm2", max_num_seqs=32)`.

        Raises ValueError for an unknown option or a value out of range, and what the constructor raises.
        """
        return cls(engine_config(**options))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.shutdown()

    @property
    def config(self) -> EngineConfig:
        """The engine's options, with what was found out about the model."""
        return self.engine.config

    @property
    def stats(self) -> FrontendStats:
        """Counts and times of this program's requests since the engine was made. The live object: read it, never write."""
        return self.engine.outputs.stats

    def add_request(
        self,
        request_id: str | None,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> str:
        """Send a request, whose outputs `step` returns; the result is its id, a made-up one for None. See AsyncLLM.add_request.

        Raises ValueError naming what is wrong with the request, EngineDeadError when the engine cannot serve. However it fails,
        also by Ctrl-C, it leaves no trace of the request.
        """
        params = params if params is not None else self.get_default_sampling_params()
        added: list[Submission] = []
        adding = self._add(request_id, prompt, params, priority, cache_salt, added)
        self.engine.run(adding, undo=lambda: self._leave(added))
        return added[0].live.external_id

    async def _add(
        self,
        request_id: str | None,
        prompt: Prompt,
        params: SamplingParams,
        priority: int,
        cache_salt: str | None,
        added: list[Submission],
    ) -> None:
        prepared = await self.engine.prepare(request_id, prompt, params, priority, cache_salt)
        name = prepared.submission.live.external_id
        if name in self._submissions:
            self.engine.discard([prepared])
            raise ValueError(f"request_id must not be that of an unfinished request, got {name!r}")
        added.append(prepared.submission)
        self._submissions[name] = prepared.submission
        self._live.add(prepared.submission.live)
        await self.engine.send(prepared)

    def step(self) -> list[RequestOutput]:
        """Wait until something has come, and return an output of each request that it is for; nothing when none is unfinished.

        Raises EngineDeadError when the engine dies, and the error of a request that failed, with its id in a note, at the next
        call after the outputs before it: later calls go on with the others. Interrupted by Ctrl-C, it loses nothing: what it
        has got is returned by the next call.
        """
        if not self._came:
            self.engine.run(self._take_news())
        outputs: list[RequestOutput] = []
        while self._came:
            submission, came = self._came[0]
            if isinstance(came, RequestOutput):
                outputs.append(came)
            elif outputs:
                break
            self._came.popleft()
            if isinstance(came, Exception):
                self._leave([submission])
                raise came
            if came.finished:
                self._leave([submission])
        return outputs

    async def _take_news(self) -> None:
        for submission in await self.engine.news(self._live):
            try:
                while (output := submission.collector.get_nowait()) is not None:
                    self._came.append((submission, output))
                    if output.finished:
                        break  # else an error may be there as well
            except Exception as error:  # noqa: BLE001 - it is raised by `step`
                error.add_note(f"request {submission.live.external_id}")
                self._came.append((submission, error))

    def _leave(self, submissions: Iterable[Submission]) -> None:
        for submission in submissions:
            self._submissions.pop(submission.live.external_id, None)
            self._live.discard(submission.live)
            self.engine.leave(submission)

    def abort_request(self, request_ids: str | Iterable[str]) -> None:
        """End requests without another output. Ids of requests that have ended do nothing."""
        self.engine.run(self._abort([request_ids] if isinstance(request_ids, str) else list(request_ids)))

    async def _abort(self, request_ids: list[str]) -> None:
        aborted = [self._submissions[one] for one in dict.fromkeys(request_ids) if one in self._submissions]
        self._leave(aborted)
        self._came = deque(one for one in self._came if one[0] not in aborted)
        self.engine.end_wait()

    def has_unfinished_requests(self) -> bool:
        """Whether `step` has anything to return or to wait for."""
        return bool(self._submissions)

    def get_num_unfinished_requests(self) -> int:
        """How many requests have not ended, or have ended and `step` has not told of it."""
        return len(self._submissions)

    def get_default_sampling_params(self) -> SamplingParams:
        """The sampling parameters of requests that name none, as the model's generation_config.json has them."""
        return self.engine.get_default_sampling_params()

    def get_tokenizer(self) -> Any:
        """The model's tokenizer as transformers has it. ValueError with `skip_tokenizer_init`."""
        return self.engine.run(self.engine.get_tokenizer())

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """See AsyncLLM.reset_prefix_cache."""
        return self.engine.run(self.engine.reset_prefix_cache(reset_running_requests))

    def describe(self) -> EngineDescription:
        """See AsyncLLM.describe."""
        return self.engine.run(self.engine.describe())

    def pause_generation(self, mode: PauseMode = "abort", clear_cache: bool = True) -> None:
        """See AsyncLLM.pause_generation. Answers that are waited for do not come before `resume_generation`."""
        self.engine.run(self.engine.pause_generation(mode, clear_cache))

    def resume_generation(self) -> None:
        """See AsyncLLM.resume_generation."""
        self.engine.run(self.engine.resume_generation())

    def is_paused(self) -> bool:
        """See AsyncLLM.is_paused."""
        return self.engine.run(self.engine.is_paused())

    def process_table(self) -> list[ProcessInfo]:
        """The engine's processes; none when it has ended."""
        return self.engine.process_table()

    def shutdown(self) -> None:
        """Stop the engine's processes and wait until they have ended. A second call does nothing."""
        self._shut_down()
        atexit.unregister(self._shut_down)
