"""Conversation: a session over scripted workers beside a plain model of its context, by which every answer is checked."""

from collections.abc import Sequence

from fault_driver import FaultDriver, Stream
from faulty_engines import greedy
from msgspec.structs import replace
from scripted_worker import tokens_of

from ringpost import RequestOutput, RequestOutputKind, SamplingParams, Session

ENDLESS = 50_000  # tokens of an answer that is interrupted


class Conversation:
    """One turn after the other.

    Attributes:
        context: what the session's context must be.
        cached: prompt tokens of the last turn that were not computed anew.
    """

    def __init__(self, session: Session, driver: FaultDriver | None = None, context: Sequence[int] = ()) -> None:
        """`driver` learns of every token."""
        self.session = session
        self.context = list(context)
        self.cached = 0
        self._driver = driver

    async def turn(self, chunk: Sequence[int], params: SamplingParams, *, keep: bool = False) -> list[int]:
        """A chunk and the whole answer to it, which is that of a request with the same tokens."""
        prompt = [*self.context, *chunk]
        await self._append(chunk, params, keep=keep)
        told = await self._told(prompt, most=None)
        assert told == tokens_of(prompt, params)
        self._now([*prompt, *(told if keep else told[:-1])])
        return told

    async def broken_off(self, chunk: Sequence[int], after: int, keep: int) -> list[int]:
        """A chunk whose answer is interrupted when so many tokens of it have been told; the first `keep` of them stay."""
        await self._append(chunk, greedy(ENDLESS))
        await self.interrupted(prompt := [*self.context, *chunk], after, keep)
        return prompt

    async def interrupted(self, prompt: Sequence[int], after: int, keep: int) -> None:
        """The same for a chunk that was appended, greedy and endless; the context is `prompt` with it."""
        told = await self._told(prompt, most=after)
        assert self.session.interrupt(keep_tokens=keep) == len(prompt) + keep
        told += await self._told(prompt, most=None, reason="interrupt")
        assert told == tokens_of(prompt, greedy(len(told)))
        self._now([*prompt, *told[:keep]])

    async def retracted(self, chunk: Sequence[int], after: int) -> None:
        """A chunk that is taken back when so many tokens of its answer have been told."""
        await self._append(chunk, greedy(ENDLESS))
        await self._told([*self.context, *chunk], most=after)
        assert self.session.retract() == len(self.context)
        await self._told([*self.context, *chunk], most=None, reason="interrupt")
        self._now(self.context)

    async def forked(self) -> "Conversation":
        """Another one with the same context."""
        child = Conversation(await self.session.fork(), self._driver, self.context)
        child._now(self.context)
        return child

    async def _append(self, chunk: Sequence[int], params: SamplingParams, *, keep: bool = False) -> None:
        params = replace(params, output_kind=RequestOutputKind.DELTA)
        await self.session.append(list(chunk), params, keep_last_token=keep)

    async def _told(self, prompt: Sequence[int], most: int | None, reason: str | None = None) -> list[int]:
        """What outputs tell of the answer to `prompt`, until there are `most` tokens, or to its end."""
        stream, tokens = Stream(), list[int]()
        if self._driver is not None:
            self._driver.began(stream)
        output: RequestOutput | None = None
        while output is None or (output.boundary is None and (most is None or len(tokens) < most)):
            output = await anext(self.session)
            assert output.prompt_token_ids == prompt
            assert not output.finished
            tokens += output.outputs[0].token_ids
            self.cached = output.num_cached_tokens
            if self._driver is not None:
                self._driver.received(stream, len(output.outputs[0].token_ids))
        if self._driver is not None:
            self._driver.ended(stream)
        if output.boundary is None:
            assert most is not None
        else:
            assert most is None, "the answer has ended too early"
            assert reason in (None, output.boundary.finish_reason)
        return tokens

    def _now(self, context: Sequence[int]) -> None:
        self.context = list(context)
        # The turn of a chunk that was queued may have begun.
        assert self.session.context[: len(context)] == self.context
        assert self.session.context_length == len(self.session.context)
        assert self.session.context_length == len(context) or not self.session.is_idle
