"""Processes that die while a program waits for answers without an event loop."""

import asyncio
import os
import signal
import threading

import pytest
from fault_driver import CORE, WORKER
from fault_script import ALWAYS, Fault
from faults import struck
from faulty_engines import FaultyEngines, held_back, mixed, prompt_of, seeded
from offline_use import ask, check_outputs, interrupt, pids_of, when_tokens_come
from scripted_worker import tokens_of

from ringpost import EngineDeadError, EngineGenerateError
from ringpost.actors.errors import NoAnswerError
from ringpost.ipc.blocking import BlockingLoop


def kill(actor: str, message: str, number: int, epoch: int = 1) -> Fault:
    return Fault(do="kill", actor=actor, at=number, message=message, first_epoch=epoch, last_epoch=epoch)


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param([kill(WORKER, "StepPlan", 20)], id="the worker"),
        pytest.param([kill(CORE, "StepResult", 20)], id="the core"),
        pytest.param([kill(CORE, "AddRequest", 3)], id="the core while requests are sent"),
        pytest.param(
            [kill(CORE, "StepResult", 9), kill(CORE, "AddRequest", 2, epoch=2)], id="its successor too", marks=pytest.mark.long
        ),
        pytest.param([kill(WORKER, "StepPlan", 9), kill(CORE, "Reattach", 1, epoch=2)], id="the core after its worker"),
    ],
)
def test_the_answers_come_all_the_same(engines: FaultyEngines, faults: list[Fault]) -> None:
    with engines.offline(*faults) as llm:
        ask(llm, mixed(6, max_tokens=60))
        assert sum(llm.llm_engine.stats.restarts.values()) >= len(faults)
        ask(llm, mixed(2, max_tokens=3))


def test_a_core_that_died_while_nobody_waited(engines: FaultyEngines, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program learns of it at its next call, with what came before."""
    works_again = threading.Event()
    with engines.offline(kill(CORE, "StepResult", 20)) as llm:
        engine = llm.llm_engine
        monkeypatch.setattr(engine.engine._thread, "works_again", lambda _: works_again.set())
        for number in range(3):
            engine.add_request(str(number), prompt_of(number), seeded(number, 60))
        works_again.wait()
        tokens = {}
        while engine.has_unfinished_requests():
            for output in engine.step():
                tokens[output.request_id] = output.outputs[0].token_ids
        assert tokens == {str(number): tokens_of(prompt_of(number), seeded(number, 60)) for number in range(3)}


def test_a_question_is_asked_again_of_the_successor(engines: FaultyEngines) -> None:
    with engines.offline(kill(CORE, "DescribeEngine", 1)) as llm:
        assert llm.describe().steps == 0
        ask(llm, mixed(2, max_tokens=3))


def test_when_nothing_is_replaced_the_reason_is_told_from_then_on(engines: FaultyEngines) -> None:
    with engines.offline(kill(WORKER, "StepPlan", 9), max_restarts=0) as llm:
        for _ in range(2):
            with pytest.raises(EngineDeadError, match=r"worker0\.0 \(pid \d+\): ProcessDied: killed by signal 9"):
                ask(llm, mixed(6, max_tokens=60))
        with pytest.raises(EngineDeadError, match=r"worker0\.0"):
            llm.describe()
        with pytest.raises(EngineDeadError, match=r"worker0\.0"):
            llm.llm_engine.add_request("a", "a")


def test_answers_that_had_come_before_are_there_when_the_engine_has_died(engines: FaultyEngines) -> None:
    with engines.offline(max_restarts=0) as llm:
        engine = llm.llm_engine
        engine.add_request("a", prompt_of(2), seeded(2, 5))
        llm.enqueue(prompt_of(1), seeded(1, 5))
        ask(llm, [(prompt_of(3), seeded(3, 40))])  # the others come meanwhile
        os.kill(pids_of(llm)[CORE], signal.SIGKILL)
        engine.engine._thread._thread.join()
        check_outputs([(prompt_of(1), seeded(1, 5))], llm.wait_for_completion())
        check_outputs([(prompt_of(2), seeded(2, 5))], engine.step())
        with pytest.raises(EngineDeadError, match=CORE):
            llm.enqueue(prompt_of(1))


def test_a_large_prompt_that_is_sent_when_the_engine_dies_gets_the_reason(engines: FaultyEngines) -> None:
    offline = engines.offline(kill(CORE, "AddRequest", 1), max_restarts=0, mailbox_bytes=1 << 16, num_blocks_override=5000)
    with offline as llm, pytest.raises(EngineDeadError, match="core0"):
        llm.generate([[5] * 60_000] * 8, seeded(1, 2))


def test_a_request_that_fails_is_named_and_the_others_are_aborted(engines: FaultyEngines) -> None:
    deadly = 130
    with engines.offline(Fault(do="raise", prompt_token=deadly, times=ALWAYS)) as llm:
        with pytest.raises(EngineGenerateError) as caught:
            llm.generate([prompt_of(0), [*prompt_of(1), deadly]], seeded(1, 500))
        assert caught.value.__notes__ == ["prompts[1]"]
        ask(llm, mixed(2, max_tokens=3))


def test_ctrl_c_while_the_core_is_restarted(engines: FaultyEngines) -> None:
    """The requests are with no core when they are aborted."""
    with engines.offline(kill(CORE, "StepResult", 30), held_back(CORE)) as llm:

        def wait_and_interrupt() -> None:
            asyncio.run(struck(engines.script, 2))  # the successor is held back, too
            interrupt()

        thread = when_tokens_come(llm, wait_and_interrupt)
        with pytest.raises(KeyboardInterrupt):
            llm.generate([prompt_of(1)], seeded(1, 2000))
        thread.join()
        engines.go_on()
        ask(llm, mixed(2, max_tokens=3))


def test_what_the_successor_needs_is_sent_however_often_that_is_broken_off(
    engines: FaultyEngines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a question's deadline, by Ctrl-C in a question and in a call, and by an error of the program's own."""
    asked = [([10 + (7 * number + index) % 90 for index in range(3000)], seeded(number, 3)) for number in range(30)]
    parked, park = threading.Event(), BlockingLoop.park

    def told(loop: BlockingLoop, until: float) -> None:
        parked.set()
        park(loop, until)

    def press() -> None:
        parked.wait()
        interrupt()

    def fail(*_: object) -> None:
        raise LookupError("of its own")

    options = {"hang_timeout": 0.5, "mailbox_bytes": 1 << 16, "num_blocks_override": 6000}
    with engines.offline(held_back(CORE), **options) as llm:
        llm.enqueue([prompt for prompt, _ in asked], [params for _, params in asked])
        os.kill(pids_of(llm)[CORE], signal.SIGKILL)
        asyncio.run(struck(engines.script))
        with pytest.raises(NoAnswerError, match=r"core0 has not answered DescribeEngine in 0\.5 s"):
            llm.describe()
        monkeypatch.setattr(BlockingLoop, "park", told)
        for call in (lambda: llm.reset_prefix_cache(), lambda: llm.generate("a")):
            parked.clear()
            thread = threading.Thread(target=press)
            thread.start()
            with pytest.raises(KeyboardInterrupt):
                call()
            thread.join()
        before = signal.signal(signal.SIGALRM, fail)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(LookupError, match="of its own"):
                llm.generate("a")
        finally:
            signal.signal(signal.SIGALRM, before)
        engines.go_on()
        check_outputs(asked, llm.wait_for_completion())
