"""Random lives of sessions against a plain model: context on both sides and outputs are always what they must be."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st
from session_core import SessionCore, deltas

from ringpost import RequestOutput, RequestOutputKind, SamplingParams, Session
from ringpost.ipc.messages.outputs import FinishReason

KINDS = list(RequestOutputKind)


@dataclass
class Turn:
    """One that the model has begun."""

    number: int
    chunk: list[int]
    params: SamplingParams
    keep: bool
    said: list[int] = field(default_factory=list)  # that has reached the frontend
    told: int = 0  # tokens in outputs that were taken
    reason: FinishReason | None = None
    length: int = 0  # of the context at its end
    taken: bool = False  # its last output was
    kept: int = 0  # tokens of the answer in the context


class Model:
    """What one session must be."""

    def __init__(self, session: Session, prefix: list[int], starts: list[int]) -> None:
        self.session = session
        self.prefix = prefix  # what a fork began with
        self.starts = starts  # of chunks in it
        self.turns: list[Turn] = []  # in the context
        self.queue: list[Turn] = []
        self.untaken: list[Turn] = []
        self.running: Turn | None = None
        self.answered: Turn | None = None
        self.number = 0

    @property
    def settled(self) -> list[int]:
        """The context but for a turn that runs."""
        tokens = list(self.prefix)
        for turn in self.turns:
            tokens += turn.chunk + turn.said[: turn.kept]
        return tokens

    @property
    def context(self) -> list[int]:
        turn = self.running
        return self.settled + ([] if turn is None else turn.chunk + turn.said)

    def begin(self, limit: int) -> None:
        if self.running is None and self.queue and len(self.untaken) < limit:
            self.running = self.queue.pop(0)
            self.untaken.append(self.running)

    def end(self, reason: FinishReason, kept: int) -> None:
        turn = self.running
        assert turn is not None
        turn.reason, turn.kept = reason, kept
        self.turns.append(turn)
        self.running, self.answered = None, turn
        turn.length = len(self.settled)

    def take(self, output: RequestOutput) -> None:
        """One output of the consumer's, which must be of the oldest turn that has any."""
        turn = self.untaken[0]
        (one,) = output.outputs
        assert output.outputs[0].finish_reason == turn.reason or output.boundary is None
        since = turn.told if turn.params.output_kind is RequestOutputKind.DELTA else 0
        assert list(one.token_ids) == turn.said[since:], "what came, once and in order"
        turn.told = len(turn.said)
        if turn.reason is None:
            assert output.boundary is None
            return
        boundary = output.boundary
        assert boundary is not None
        assert (boundary.chunk, boundary.context_length, boundary.finish_reason) == (turn.number, turn.length, turn.reason)
        assert boundary.num_tokens == len(turn.said)
        turn.taken = True
        self.untaken.pop(0)


class Life:
    """Sessions before a core, and their models. Each operation draws what it needs."""

    def __init__(self, core: SessionCore, data: st.DataObject) -> None:
        self.core = core
        self.data = data
        self.limit = core.config.sessions.max_queued_chunks
        self.models = [Model(core.open(), [], [])]
        self.token = 10
        self.undelivered: list[tuple[Model, Turn | None, list[int], FinishReason | None]] = []  # each with its turn

    def draw(self, strategy: st.SearchStrategy[Any]) -> Any:
        return self.data.draw(strategy)

    def fresh(self, count: int) -> list[int]:
        """Tokens unlike those before."""
        self.token += count
        return [3 + number % 250 for number in range(self.token - count, self.token)]

    def check(self) -> None:
        for model in self.models:
            model.begin(self.limit)
            session = model.session
            assert session.context == model.context
            assert session.context_length == len(model.context)
            assert (session.num_queued, session.is_idle) == (len(model.queue), model.running is None and not model.queue)

    def check_core(self) -> None:
        """Everything has arrived: what runs there is what must."""
        self.core.take()
        for model in self.models:
            number = model.session.link.number
            if model.running is None:
                assert number not in self.core.turns
            else:  # it may have ended there, and said more than has arrived
                assert self.core.whole(number)[: len(model.context)] == model.context

    async def append(self, model: Model) -> None:
        if len(model.queue) >= self.limit or len(model.context) > 300:
            return
        kind, keep = self.draw(st.sampled_from(KINDS)), self.draw(st.booleans())
        params, chunk = deltas(output_kind=kind, ignore_eos=True), self.fresh(self.draw(st.integers(1, 20)))
        assert await model.session.append(chunk, params, keep_last_token=keep) == model.number
        model.queue.append(Turn(model.number, chunk, params, keep))
        model.number += 1

    async def say(self, model: Model, *reasons: FinishReason) -> None:
        await self.core.settle()
        self.check_core()
        if model.session.link.number in self.core.turns:
            reason = self.draw(st.sampled_from(reasons or [None, None, "length", "stop"]))
            self.core.generate(model.session, self.fresh(self.draw(st.integers(0 if reason == "stop" else 1, 4))), reason)
            # Deltas may be on their way while the consumer interrupts: the model has them when they are delivered.
            self.undelivered.append((model, model.running, list(self.core.sent[-1].tokens), reason))

    async def deliver(self, _: Model) -> None:
        if not self.undelivered:
            return
        model, turn, tokens, reason = self.undelivered.pop(0)
        self.core.deliver(1)
        if turn is None or model.running is not turn:
            return
        turn.said += tokens
        if reason is not None:
            model.end(reason, len(turn.said) if turn.keep else len(turn.said) - 1)

    async def speak(self, model: Model) -> None:
        """All chunks are answered, one at least, as far as the consumer lets them."""
        if model.session.is_idle:
            await self.append(model)
        self.check()
        while model.running is not None:
            await self.say(model, "length", "stop")
            while self.undelivered:
                await self.deliver(model)
            self.check()

    async def take(self, model: Model) -> None:
        output = model.session.collector.get_nowait()
        if output is not None:
            model.take(output)

    async def interrupt(self, model: Model) -> None:
        turn = model.running or model.answered
        if turn is None:
            assert model.session.interrupt() == len(model.settled)
            return
        keep = self.draw(st.one_of(st.none(), st.just(len(turn.said)), st.integers(0, len(turn.said))))
        wanted = turn.told if keep is None else keep
        length = model.session.interrupt(keep_tokens=keep)
        if turn is model.running:
            self.stop(model, turn, wanted)
        elif keep is not None or wanted < len(turn.said):
            self.cut(turn, wanted)
            turn.kept = wanted
            turn.length = len(model.settled)
        assert length == len(model.settled)

    def stop(self, model: Model, turn: Turn, wanted: int) -> None:
        """An answer that runs is cut."""
        self.cut(turn, wanted)
        model.end("interrupt", wanted)

    @staticmethod
    def cut(turn: Turn, wanted: int) -> None:
        """What was said behind goes."""
        if wanted < len(turn.said):
            del turn.said[wanted:]
            turn.reason = "interrupt"
        turn.told = min(turn.told, len(turn.said))

    def dropped(self, model: Model) -> None:
        """The context has become shorter: an answer behind ends with what was told of it, or more of it is left."""
        model.answered, length = None, len(model.settled)
        for turn in model.untaken:
            if turn.length > length:
                self.cut(turn, max(turn.told, turn.kept if turn in model.turns else 0))
                turn.reason, turn.length = "interrupt", length

    async def retract(self, model: Model) -> None:
        if model.queue:
            model.queue.pop()
            assert model.session.retract() == len(model.context)
            return
        if model.running is not None:
            self.stop(model, model.running, model.running.told)
        if model.turns:
            model.turns.pop()
        elif model.starts:
            del model.prefix[model.starts.pop() :]
        else:
            with pytest.raises(ValueError, match="no chunk"):
                model.session.retract()
            return
        assert model.session.retract() == len(model.settled)
        self.dropped(model)

    async def rewind(self, model: Model) -> None:
        """To anywhere in the last chunk's answer, or to its beginning."""
        if model.running is not None or model.queue or not model.turns:
            return
        turn, before = model.turns[-1], len(model.settled)
        turn.kept = self.draw(st.integers(0, turn.kept))
        model.session.rewind(len(model.settled))
        if len(model.settled) < before:
            self.dropped(model)

    async def fork(self, model: Model) -> None:
        if len(self.models) == 4:
            return
        starts, length = list(model.starts), len(model.prefix)
        for turn in [*model.turns, *([] if model.running is None else [model.running])]:
            starts.append(length)
            length += len(turn.chunk) + turn.kept
        self.models.append(Model(await model.session.fork(), model.context, starts))

    async def die(self, _: Model) -> None:
        while self.undelivered:
            await self.deliver(self.models[0])
        self.core.die()

    async def live(self) -> None:
        common: list[Callable[[Model], Coroutine[Any, Any, None]]] = [self.append, self.say, self.deliver, self.take]
        rare = [self.speak, self.speak, self.interrupt, self.retract, self.retract, self.rewind, self.fork, self.die]
        for _ in range(self.draw(st.integers(1, 40))):
            operation = self.draw(st.sampled_from([*common, *common, *rare]))
            await operation(self.draw(st.sampled_from(self.models)))
            self.check()
            if self.draw(st.booleans()):
                await self.core.settle()
                self.check_core()
        await self.finish()

    async def finish(self) -> None:
        """All is answered, and every session ends in order."""
        for model in self.models:
            model.session.finish()
        while self.undelivered:
            await self.deliver(self.models[0])
        for model in self.models:
            self.check()
            while model.running is not None or model.queue or model.untaken:
                await self.core.settle()
                if model.running is not None:
                    self.core.generate(model.session, self.fresh(2), "length")
                    self.undelivered.append((model, model.running, list(self.core.sent[-1].tokens), "length"))
                    await self.deliver(model)
                    self.check()
                output = model.session.collector.get_nowait()
                assert output is not None
                model.take(output)
                self.check()
                if output.finished:
                    break
            else:
                last = model.session.collector.get_nowait()
                assert last is not None
                assert (last.finished, last.boundary, list(last.outputs[0].token_ids)) == (True, None, [])
            assert (model.running, model.queue, model.untaken) == (None, [], [])
        await self.core.settle()
        assert (self.core.turns, self.core.core_contexts) == ({}, {})
        assert len(self.core.sessions) == len(self.core.outputs) == 0


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("full", [False, pytest.param(True, marks=pytest.mark.long)], ids=["reduced", "full"])
def test_any_life_of_sessions(tiny: str, loop: Any, full: bool) -> None:
    core = SessionCore(tiny, max_queued_chunks=3)  # whose configuration all share

    @settings(max_examples=1500 if full else 60, deadline=None)
    @given(st.data())
    def life(data: st.DataObject) -> None:
        async def body() -> None:
            async with SessionCore(tiny, config=core.config).running() as running:
                await Life(running, data).live()

        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(body())

    core.close()
    life()
