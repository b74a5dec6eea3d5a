"""LLMEngine over workers without a model: what comes of steps, errors, aborts and Ctrl-C. Nothing is lost, nothing is left."""

import signal
from collections.abc import Callable, Iterable

import pytest
from fault_driver import CORE
from fault_script import Fault
from faulty_engines import FaultyEngines, greedy, prompt_of
from offline_use import ask, interrupt
from scripted_worker import tokens_of

from ringpost import EngineGenerateError, LLMEngine, RequestOutputKind
from ringpost.ipc.messages.outputs import TokenDelta

ENDLESS = 2000  # tokens that no test waits for


def answers(engine: LLMEngine) -> dict[str, list[int]]:
    """What the unfinished requests, whose outputs are deltas, still get. A Ctrl-C is passed over."""
    tokens: dict[str, list[int]] = {}
    while engine.has_unfinished_requests():
        try:
            outputs = engine.step()
        except KeyboardInterrupt:
            continue
        for output in outputs:
            tokens.setdefault(output.request_id, []).extend(output.outputs[0].token_ids)
    return tokens


def before_call(act: Callable[[], object], number: int, function: Callable[[], object]) -> Callable[[], object]:
    """The same function, but something happens before one of its calls."""
    calls = 0

    def called() -> object:
        nonlocal calls
        calls += 1
        if calls == number:
            act()
        return function()

    return called


def test_ids_are_the_callers_or_made(engines: FaultyEngines) -> None:
    with engines.offline() as llm:
        engine = llm.llm_engine
        names = [engine.add_request(name, prompt_of(1), greedy(3)) for name in ("a", None, None)]
        assert names[0] == "a"
        assert len(set(names)) == 3
        with pytest.raises(ValueError, match="request_id must not be that of an unfinished request, got 'a'"):
            engine.add_request("a", prompt_of(1), greedy(3))
        assert engine.get_num_unfinished_requests() == len(engine.engine.outputs) == 3
        assert sorted(answers(engine)) == sorted(names)
        assert engine.step() == []


def test_an_error_that_came_with_tokens_is_raised_after_them(engines: FaultyEngines, monkeypatch: pytest.MonkeyPatch) -> None:
    with engines.offline() as llm:
        engine, outputs = llm.llm_engine, llm.llm_engine.engine.outputs
        process = outputs.process

        def failing(deltas: Iterable[TokenDelta]) -> list[int]:
            """All that has come is in one step: its tokens, and the failure of the request."""
            ended = process(deltas)
            for number in list(outputs._requests):
                ended += [number, *outputs.fail(number, EngineGenerateError("of its own"))]
            return ended

        monkeypatch.setattr(outputs, "process", failing)
        engine.add_request("a", prompt_of(1), greedy(ENDLESS))
        (output,) = engine.step()
        assert (output.finished, engine.has_unfinished_requests()) == (False, True)
        with pytest.raises(EngineGenerateError, match="of its own") as caught:
            engine.step()
        assert caught.value.__notes__ == ["request a"]
        assert (engine.has_unfinished_requests(), engine.step()) == (False, [])


def test_ctrl_c_in_a_step_loses_nothing(engines: FaultyEngines, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither tokens, nor a whole answer with its end."""
    interrupted: list[str] = []

    def press(kind: str) -> None:
        interrupted.append(kind)
        interrupt()

    with engines.offline() as llm:
        engine = llm.llm_engine
        for kind, call in ((RequestOutputKind.DELTA, 3), (RequestOutputKind.FINAL_ONLY, 1)):
            engine.add_request(kind.name, prompt_of(1), greedy(40, output_kind=kind))
            collector = engine._submissions[kind.name].collector
            pressed = before_call(lambda kind=kind: press(kind.name), call, collector.get_nowait)  # type: ignore[misc]
            monkeypatch.setattr(collector, "get_nowait", pressed)
            assert answers(engine) == {kind.name: tokens_of(prompt_of(1), greedy(40))}
        assert interrupted == ["DELTA", "FINAL_ONLY"]


def test_ctrl_c_while_requests_are_sent_leaves_none(engines: FaultyEngines, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have been sent, but the caller does not learn of them."""
    with engines.offline() as llm:
        engine = llm.llm_engine
        tell = engine.engine._client.tell

        async def pressed(message: object) -> None:
            await tell(message)  # type: ignore[arg-type]
            interrupt()

        with monkeypatch.context() as patch:
            patch.setattr(engine.engine._client, "tell", pressed)
            with pytest.raises(KeyboardInterrupt):
                llm.enqueue(prompt_of(1), greedy(ENDLESS))
            with pytest.raises(KeyboardInterrupt):
                engine.add_request("a", prompt_of(1), greedy(ENDLESS))
        assert (len(engine.engine.outputs), engine.engine._news) == (0, {})
        assert not engine.has_unfinished_requests()
        assert llm.wait_for_completion() == []
        engine.add_request("a", prompt_of(1), greedy(3, output_kind=RequestOutputKind.DELTA))
        assert answers(engine) == {"a": tokens_of(prompt_of(1), greedy(3))}


def test_an_abort_ends_the_wait_for_what_is_aborted(engines: FaultyEngines) -> None:
    """Also of an output that is there already, and in a step that a signal has interrupted."""
    with engines.offline() as llm:
        engine = llm.llm_engine
        before = signal.signal(signal.SIGALRM, lambda *_: engine.abort_request("a"))
        try:
            engine.add_request("a", prompt_of(1), greedy(ENDLESS, output_kind=RequestOutputKind.FINAL_ONLY))
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            assert engine.step() == []
        finally:
            signal.signal(signal.SIGALRM, before)
        for number in range(2):
            engine.add_request(str(number), prompt_of(number), greedy(5, output_kind=RequestOutputKind.DELTA))
        ask(llm, [(prompt_of(3), greedy(40))])  # meanwhile the others end
        engine.engine.run(engine._take_news())
        engine.abort_request(["0", "0", "gone"])
        assert answers(engine) == {"1": tokens_of(prompt_of(1), greedy(5))}
        while llm.describe().running:
            pass


def test_a_paused_engine_stays_so_over_a_restart(engines: FaultyEngines) -> None:
    with engines.offline(Fault(do="kill", actor=CORE, at=2, message="DescribeEngine")) as llm:
        llm.pause_generation("keep")
        assert llm.is_paused()
        names = llm.enqueue([prompt_of(1), prompt_of(2)], greedy(5))
        assert llm.is_paused()  # asked again of the successor
        assert llm.describe().steps == 0
        llm.resume_generation()
        outputs = llm.wait_for_completion()
        assert [output.request_id for output in outputs] == names
        assert [output.outputs[0].token_ids for output in outputs] == [tokens_of(prompt_of(one), greedy(5)) for one in (1, 2)]
        assert not llm.is_paused()
