"""Asking an LLM over scripted workers, and what another thread does meanwhile."""

import os
import signal
import threading
from collections.abc import Callable, Iterable, Sequence

from faulty_engines import Asked
from scripted_worker import tokens_of

from ringpost import LLM, RequestOutput
from ringpost.ipc.messages.outputs import TokenDelta


def check_outputs(asked: Sequence[Asked], outputs: Sequence[RequestOutput]) -> None:
    """Each answer is in its place, whole, and what it would be if nothing had happened."""
    assert [output.outputs[0].token_ids for output in outputs] == [tokens_of(*one) for one in asked]
    assert [output.prompt_token_ids for output in outputs] == [prompt for prompt, _ in asked]
    assert all(output.finished for output in outputs)


def ask(llm: LLM, asked: Sequence[Asked]) -> None:
    """Ask all at once, and check the answers."""
    check_outputs(asked, llm.generate([prompt for prompt, _ in asked], [params for _, params in asked]))


def when_tokens_come(llm: LLM, act: Callable[[], object]) -> threading.Thread:
    """Act, in another thread, once requests have got some tokens more."""
    stats, outputs = llm.llm_engine.stats, llm.llm_engine.engine.outputs
    enough, reached, process = stats.generation_tokens + 10, threading.Event(), outputs.process

    def told(deltas: Iterable[TokenDelta]) -> list[int]:
        ended = process(deltas)
        if stats.generation_tokens >= enough:
            reached.set()
        return ended

    def wait_and_act() -> None:
        reached.wait()
        act()

    outputs.process = told  # type: ignore[method-assign]
    thread = threading.Thread(target=wait_and_act)
    thread.start()
    return thread


def interrupt() -> None:
    """Press Ctrl-C."""
    os.kill(os.getpid(), signal.SIGINT)


def pids_of(llm: LLM) -> dict[str, int]:
    """The engine's processes by actor, without this one."""
    return {process.actor: process.pid for process in llm.llm_engine.process_table() if process.pid != os.getpid()}
