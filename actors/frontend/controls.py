"""EngineControls: what concerns the engine as a whole, asked of the core or known here."""

from collections.abc import Callable, Iterator
from functools import partial

from ...ipc.messages.config import EngineConfig
from ...ipc.messages.errors import ParameterError
from ...ipc.messages.outputs import EngineDescription, UtilityReply
from ...ipc.messages.requests import (
    DescribeEngine,
    PauseGeneration,
    PauseMode,
    RequestMessage,
    ResetPrefixCache,
    ResumeGeneration,
)
from ...ipc.messages.sampling import SamplingParams
from ..errors import EngineGenerateError
from .core_client import CoreClient
from .output_processor import OutputProcessor

SUPPORTED_TASKS = ("generate",)
_MODES: tuple[PauseMode, ...] = ("abort", "wait", "keep")


class EngineControls:
    """The methods of an engine that are about no request. A subclass says how the core is asked."""

    config: EngineConfig
    _paused = False  # by the caller, and to stay so over restarts of the core

    async def _ask(self, call: Callable[[int], RequestMessage], seconds: float | None = None) -> UtilityReply:
        """The core's answer to the call that `call` makes for a number, within `hang_timeout` unless `seconds` says otherwise.

        Raises EngineDeadError when the engine is dead, NoAnswerError when the core does not answer in time.
        """
        raise NotImplementedError

    def _for_successor(self, client: CoreClient, outputs: OutputProcessor) -> Iterator[RequestMessage]:
        """What a restarted core has to be sent: that it is paused, and the requests that go on."""
        if self._paused:
            yield PauseGeneration(client.next_number(), "keep", clear_cache=False)
        yield from outputs.unfinished()

    async def describe(self, *, workers: bool = False) -> EngineDescription:
        """Numbers of the core right now: requests running and waiting, blocks in all and free.

        With `workers` also what each of these says of itself, which it does between two steps; EngineGenerateError while they
        are replaced. Raises EngineDeadError when the engine is dead, NoAnswerError when the core does not answer within
        `hang_timeout`.
        """
        reply = await self._ask(partial(DescribeEngine, workers=workers))
        assert reply.description is not None
        return reply.description

    async def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Empty the prefix cache; with `reset_running_requests`, compute running ones again. True: it is done.

        Raises what `describe` raises.
        """
        await self._ask(partial(ResetPrefixCache, preempt_running=bool(reset_running_requests)))
        return True

    async def pause_generation(self, mode: PauseMode = "abort", clear_cache: bool = True) -> None:
        """Compute nothing any more; returns once nothing is in flight.

        Mode "abort" ends the requests at hand with finish reason "abort"; "wait" lets them finish first, however long that
        takes; "keep" keeps them as they are, to go on later. New requests are taken, and wait for `resume_generation`. Then the
        prefix cache is emptied, unless `clear_cache` is False. Cancelled, the engine pauses all the same.
        Raises ValueError for another mode, and what `describe` raises.
        """
        if mode not in _MODES:
            raise ParameterError(f"mode must be one of {', '.join(map(repr, _MODES))}, got {mode!r:.100}", "mode")
        seconds = float("inf") if mode == "wait" else None
        self._paused = True
        try:
            await self._ask(partial(PauseGeneration, mode=mode, clear_cache=bool(clear_cache)), seconds)
        except EngineGenerateError:
            self._paused = False  # it is shutting down
            raise

    async def resume_generation(self) -> None:
        """Go on after `pause_generation`; does nothing if it was not paused. Raises what `describe` raises."""
        self._paused = False
        await self._ask(ResumeGeneration)

    async def is_paused(self) -> bool:
        """Whether generation is paused. Raises what `describe` raises."""
        return (await self.describe()).paused

    async def get_supported_tasks(self) -> tuple[str, ...]:
        """What the model can be asked for: "generate"."""
        return SUPPORTED_TASKS

    async def encode(self, prompt: object, pooling_params: object = None, request_id: str | None = None) -> None:
        """Refused with a ValueError: the models that run here generate, and pool nothing (no embeddings, classes or scores)."""
        tasks = ", ".join(SUPPORTED_TASKS)
        raise ParameterError(f"task must be one of those that this model supports, {tasks}; got 'encode'", "task")

    def get_default_sampling_params(self) -> SamplingParams:
        """The sampling parameters of requests that name none, as the model's generation_config.json has them, once it runs."""
        return SamplingParams(**self.config.checkpoint.default_sampling_params)
