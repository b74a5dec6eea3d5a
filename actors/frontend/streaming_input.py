"""StreamingInput: a session from the prompts that an async generator of the caller yields."""

from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType

from ...ipc.messages.errors import ParameterError
from ...ipc.messages.sampling import SamplingParams
from ..base import TaskHost
from .input_processor import Prompt
from .outputs import RequestOutput
from .session import Session


@dataclass(frozen=True, slots=True)
class StreamingInput:
    """A chunk of a session's input."""

    prompt: Prompt
    sampling_params: SamplingParams | None = None  # None: those of the session
    keep_last_token: bool = False  # the last token of its answer stays in the context


Inputs = AsyncIterable[StreamingInput | Prompt]


async def stream_outputs(open_session: Callable[[], Awaitable[Session]], inputs: Inputs) -> AsyncGenerator[RequestOutput, None]:
    """The outputs of a session that is fed from `inputs`, which is closed in the end, whatever happens.

    What it raises is raised here as it is, once the outputs that had come were taken; so is what is wrong with a chunk.
    """
    feeder = _Feeder(inputs)
    host: TaskHost | None = None
    try:
        async with await open_session() as session:
            host = TaskHost(feeder.run(session), f"input of session {session.session_id}")
            async for output in session:
                yield output
    except BaseException as error:
        if error is feeder.error:
            error.__traceback__ = feeder.traceback
        raise
    finally:
        if host is None:
            await feeder.close()
        else:
            host.cancel()
            await host.wait()


class _Feeder:
    """Appends what a caller's generator yields."""

    def __init__(self, inputs: Inputs) -> None:
        self.error: BaseException | None = None  # what has ended the input
        self.traceback: TracebackType | None = None
        self._inputs = aiter(inputs)

    async def run(self, session: Session) -> None:
        """Feed the session until the input ends, and close that."""
        try:
            try:
                async for one in self._inputs:
                    chunk = _chunk(one)
                    await session.append(chunk.prompt, chunk.sampling_params, keep_last_token=chunk.keep_last_token)
            finally:
                await self.close()
            session.finish()
        except BaseException as error:
            self.error, self.traceback = error, error.__traceback__
            session.fail(error, "abort")
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise

    async def close(self) -> None:
        """Close the input, if it can be closed."""
        close = getattr(self._inputs, "aclose", None)
        if close is not None:
            await close()


def _chunk(given: object) -> StreamingInput:
    if isinstance(given, StreamingInput):
        return given
    if isinstance(given, str | list | tuple | dict):
        return StreamingInput(given)  # type: ignore[arg-type]
    raise ParameterError(f"a session's input must yield StreamingInput or prompts, got {given!r:.100}", "prompt")
