"""Session: a conversation whose input arrives while answers are made, as its user holds it."""

import asyncio
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self

from ...ipc.messages.errors import ParameterError
from ...ipc.messages.outputs import FinishReason
from ...ipc.messages.sampling import SamplingParams
from ..errors import RequestEnded, SessionTimeout, copy_of
from .collector import RequestOutputCollector
from .input_processor import Prompt
from .outputs import RequestOutput
from .session_clock import IdleClock
from .session_context import SessionContext
from .session_desk import SessionDesk
from .session_input import Chunk, ChunkQueue, SessionOptions
from .session_link import SessionLink
from .session_outputs import SessionOutputs
from .session_turn import Turn, check_keep


class Session:
    """Its context grows by turns: a chunk of input, and the answer to it. Made by `AsyncLLM.open_session`, used from one loop.

    Chunks are answered one after the other; `async for output in session` gives the answers, in order, for one consumer at a
    time. Leaving `async with session` closes it. It ends after `finish`, or by an abort, an error, or idleness.
    """

    def __init__(
        self, desk: "SessionDesk[Session]", link: SessionLink, options: SessionOptions, context: SessionContext
    ) -> None:
        self.session_id = options.external_id
        self.options = options
        self.link = link
        self._desk = desk
        self._context = context  # but for the turn that runs
        self._queue = ChunkQueue(desk.limits.max_queued_chunks)
        self._turn: Turn | None = None  # that runs, or is about to be sent
        self._answered: Turn | None = None  # the last one, as long as its answer ends the context
        self._num_chunks = 0
        self._finishing = False  # no more input comes
        self._completed = False  # and everything is answered
        self._over: BaseException | None = None  # what whoever still uses it is told
        self._appending = asyncio.Lock()  # chunks come in the order of the calls
        self._clock = IdleClock(options.idle_timeout, self._time_out)
        self._outputs = SessionOutputs(self.session_id, self._on_taken)
        self.collector = RequestOutputCollector(self._outputs, on_abandon=self._leave, kind="session")
        self._advance()

    async def append(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None, *, keep_last_token: bool = False
    ) -> int:
        """Add a chunk of input, in any form of a prompt; returns its number, from 0. It is answered when its turn comes.

        The answer's last token stays in the context only with `keep_last_token`. A text gets the tokenizer's special tokens
        only at the beginning of the context. Waits while `max_queued_chunks` chunks wait; cancelled, nothing was added.
        Raises ValueError for what is certainly wrong with the chunk, which the session survives; RequestEnded after `finish` or
        the session's end; the error that has ended the session.
        """
        params = sampling_params if sampling_params is not None else self.options.params
        self._require_input()
        content = self._desk.submitter.check_chunk(prompt, params)
        if not isinstance(keep_last_token, bool):
            raise ParameterError(f"keep_last_token must be a bool, got {keep_last_token!r:.100}", "keep_last_token")
        async with self._appending:
            while True:
                is_first = self._is_blank
                with self.busy():
                    tokens = await self._desk.inputs.encode(content, add_special_tokens=is_first)
                    await self._desk.inputs.settle(params)
                self._require_room(tokens, params)
                await self._queue.wait_room()
                self._require_input()
                if is_first == self._is_blank:  # what was there may have been taken back meanwhile
                    break
            self._require_room(tokens, params)
            chunk = Chunk(self._num_chunks, content if isinstance(content, str) else None, tokens, params, keep_last_token)
            self._num_chunks += 1
            self._queue.put(chunk)
            self._advance()
            return chunk.number

    def finish(self) -> None:
        """No more input comes: what is queued is answered, then the last output says finished. Harmless when repeated."""
        self._finishing = True
        self._queue.shut(clear=False)
        self._advance()

    def interrupt(self, *, keep_tokens: int | None = None, keep_chars: int | None = None) -> int:
        """Stop the answer now and keep so much of it in the context: by default what outputs have told. Never waits.

        `keep_chars` keeps the tokens whose text lies entirely within the first so many characters of the chunk's answer. Its
        last output has finish reason "interrupt", and nothing of what is not kept is told any more. An answer that has ended
        is cut likewise, until `rewind` or another turn, with no further output if its last one was taken; `keep_tokens` keeps
        its last token too. Where all its text stays, or all was told, it stays as it is. Returns the length of the context,
        before the next chunk in the queue begins its turn. Raises ValueError for more than has come, and as `append` after the
        session's end.
        """
        self._require_alive()
        turn = self._turn or self._answered
        if turn is None:
            check_keep(keep_tokens, keep_chars, 0, 0)
            return len(self._context)
        wanted = turn.num_wanted(keep_tokens, keep_chars)
        if wanted is None:
            return len(self._context)
        if turn is self._turn:
            self._stop(turn, wanted)
        else:
            turn.cut(wanted)
            self._context.put_answer(turn.answer_start, turn.answer.token_ids)
            turn.end(len(self._context))
        return self._resume_from_cut()

    def retract(self) -> int:
        """Drop the last chunk, with its answer: from the queue, while it is answered, or afterwards. Never waits.

        An answer whose last output was not taken ends with "interrupt" and what outputs have told of it. Repeated, it drops
        the chunk before in the same way, also one from before a fork. Returns the length of the context. Raises ValueError when
        there is no chunk left, and as `append` after the session's end.
        """
        self._require_alive()
        if self._queue:
            self._queue.drop_last()
            self._advance()
            return self.context_length
        if self._turn is not None:
            self._stop(self._turn, self._turn.answer.num_told)
        if not self._context.has_chunk:
            raise ValueError(f"session {self.session_id}: there is no chunk to retract")
        self._context.drop_chunk()
        self._answered = None
        return self._resume_from_cut()

    def rewind(self, length: int) -> None:
        """Cut the context to its first so many tokens, chunks or not. Never waits. Only while the session is idle.

        Answers behind end as with `retract`, but for what stays in the context. Raises ValueError while it is not and for more
        than there are, and as `append` after the session's end.
        """
        self._require_alive()
        if not self.is_idle:
            raise ValueError(f"session {self.session_id} must be idle to be rewound: a chunk is answered or waits")
        if type(length) is not int or not 0 <= length <= len(self._context):
            raise ValueError(f"length must be an integer from 0 to {len(self._context)}, the context's, got {length!r:.100}")
        if length < len(self._context):
            self._context.cut(length)
            self._answered = None
            self._resume_from_cut()

    def touch(self) -> None:
        """Begin the time anew after which an idle session ends. Raises as `append` after the session's end."""
        self._require_alive()
        self._advance()

    def busy(self) -> AbstractContextManager[None]:
        """A block within which that time does not run; behind it, it begins anew. Also after the session's end."""
        return self._clock.held()

    async def fork(self, *, seed: int | None = None, session_id: str | None = None) -> "Session":
        """A new session that begins with this one's context as it is now, with what has come of a running turn.

        It has the same parameters for chunks that bring none, but for the seed: a fresh random one for each turn when None.
        Queued chunks and outputs are not taken over. Raises as `AsyncLLM.open_session`, and as `append` after the end.
        """
        self._require_alive()
        return self._desk.fork(self, self._with_turn(), seed, session_id)

    @property
    def context(self) -> list[int]:
        """A copy of the token ids of the context, with what has come of a running turn."""
        return self._with_turn().tokens

    @property
    def context_length(self) -> int:
        """Number of these."""
        return len(self._context) if self._turn is None else self._turn.length

    @property
    def num_queued(self) -> int:
        """Chunks that await their turn."""
        return len(self._queue)

    @property
    def is_idle(self) -> bool:
        """Whether no turn runs and no chunk is queued."""
        return self._turn is None and not self._queue

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RequestOutput:
        """The next output. Cancelled, it takes nothing. Raises the session's error after the outputs that came before it."""
        if self._outputs.finished:
            raise StopAsyncIteration
        return await self.collector.get()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End it and free what it holds, whatever is under way. Never waits; harmless when repeated."""
        self.collector.close()

    def abort(self, error: BaseException | None = None) -> None:
        """End it from outside: the last output has finish reason "abort". `error` is for whoever still appends."""
        if self._over is not None or self._completed:
            return
        self._over = error or RequestEnded(f"session {self.session_id} was aborted")
        if self._turn is None:
            self._end_aborted()
        else:
            self._forget_in_core(self._desk.outputs.abort(self._turn.live))  # which comes back as news

    def fail(self, error: BaseException, reason: FinishReason = "error") -> None:
        """End it by an error, after all outputs that have come; a running turn counts as ended for this reason."""
        if self._over is not None or self._completed:
            return
        if self._turn is not None:
            self._turn.live.tell_rest()
        self._release(error, reason)
        self.collector.put_error(error)

    def _leave(self) -> None:
        self._release(RequestEnded(f"session {self.session_id} is closed"), "abort")

    def _release(self, over: BaseException, reason: FinishReason = "abort") -> None:
        """Nothing begins any more, nobody waits, and the core forgets the session."""
        self._over = self._over or over
        turn, self._turn = self._turn, None
        if turn is not None:
            self._forget_in_core(self._desk.outputs.abandon(turn.live, reason))
        self._queue.shut(clear=True)
        self._retire()

    def _retire(self) -> None:
        self._clock.stop()
        self.link.close()
        self._desk.forget(self)

    def _forget_in_core(self, numbers: list[int]) -> None:
        for number in numbers:
            self._desk.client.abort(number)

    def _require_alive(self) -> None:
        if self._over is not None:
            raise copy_of(self._over)

    def _require_input(self) -> None:
        self._require_alive()
        if self._finishing:
            raise RequestEnded(f"session {self.session_id} takes no more input: its input was finished")

    def _require_room(self, tokens: list[int], params: SamplingParams) -> None:
        """Raise ValueError when the chunk finds none however short the answers before it are."""
        context = len(self._context) if self._turn is None else self._turn.answer_start
        self._desk.inputs.check_turn(context + self._queue.num_tokens, len(tokens), params)

    def _with_turn(self) -> SessionContext:
        turn = self._turn
        return self._context.with_turn(*(([], []) if turn is None else (turn.chunk.tokens, turn.answer.token_ids)))

    @property
    def _is_blank(self) -> bool:
        """Whether nothing comes before the next chunk."""
        return not self.context_length and not self._queue

    def _advance(self) -> None:
        """Begin the next turn if it is time for one; without one the session is idle, or complete."""
        self._clock.stop()
        # A consumer that does not read holds its session back.
        if self._queue and self._turn is None and len(self._outputs) < self._desk.limits.max_queued_chunks:
            self._begin(self._queue.take_first())
        if self._turn is not None or self._over is not None or self._completed:
            return
        if self._finishing and not self._queue:
            self._completed = True
            self._outputs.end()
            self._retire()
            self.collector.wake()
        else:
            self._clock.start()

    def _begin(self, chunk: Chunk) -> None:
        try:
            live, message = self._desk.submitter.turn(self.link.number, self.options, chunk, self._context.tokens)
        except ValueError as error:  # the answer before it was long
            self.fail(error)
            return
        self._turn = turn = Turn(chunk, len(self._context), live, self._on_news, self.fail)
        self._outputs.add(turn)
        self._desk.outputs.add(live, turn)
        self._desk.outputs.tokenized(live, list(message.prompt))
        self._desk.send(self.link, turn, message)

    def _on_news(self, turn: Turn) -> None:
        """Something has come of the turn that runs."""
        self.link.has(turn.length)
        reason = turn.answer.finish_reason
        if reason == "abort":
            self._end_aborted()
        elif reason is not None:
            self._turn = None
            self._context.add(turn.chunk.tokens, turn.answer.token_ids[: turn.num_kept()])
            self.link.limit(len(self._context))
            self._answered = turn
            turn.end(len(self._context))
            self._advance()
        self.collector.wake()

    def _end_aborted(self) -> None:
        self._outputs.end(abort=True)
        self._release(RequestEnded(f"session {self.session_id} was aborted"))
        self.collector.wake()

    def _time_out(self) -> None:
        idle = f"had no input and made no answer for {self.options.idle_timeout:g} s, its idle timeout"
        self.fail(SessionTimeout(f"session {self.session_id} {idle}"))

    def _on_taken(self) -> None:
        """A turn's last output was taken, or the session's: all that can be while the session is idle."""
        if self._outputs.finished:
            self._over = self._over or RequestEnded(f"session {self.session_id} has ended")
        else:
            self._advance()

    def _stop(self, turn: Turn, kept: int) -> None:
        """End the turn that runs with so much of its answer, which the context takes over."""
        self._turn = None
        numbers = self._desk.outputs.abandon(turn.live, "interrupt")
        if turn.sent:
            self._forget_in_core(numbers)
        turn.live.interrupt(kept)
        self._context.add(turn.chunk.tokens, turn.answer.token_ids)
        self._answered = turn
        turn.end(len(self._context))

    def _resume_from_cut(self) -> int:
        """The context has been cut: so is it in the core, so are answers that are not told, and the next turn may begin."""
        length = len(self._context)
        self.link.truncate(length)
        self._outputs.cut(length)
        self._advance()
        self.collector.wake()
        return length
