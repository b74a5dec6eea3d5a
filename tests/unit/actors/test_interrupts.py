"""Ctrl-C while something is in hand."""

import signal
import threading

import pytest

from ringpost.actors.frontend.interrupts import Interrupts


def press() -> None:
    signal.raise_signal(signal.SIGINT)


def test_it_is_raised_where_it_is_looked_for() -> None:
    heard: list[str] = []
    interrupts = Interrupts(lambda: heard.append("interrupt"))
    with interrupts.held():
        interrupts.check()
        press()
        heard.append("goes on")
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()
        interrupts.check()
    assert heard == ["interrupt", "goes on"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_one_that_nobody_looked_for_is_raised_at_the_end() -> None:
    reached: list[bool] = []

    def press_and_go_on() -> None:
        with Interrupts(lambda: None).held():
            press()
            reached.append(True)

    with pytest.raises(KeyboardInterrupt):
        press_and_go_on()
    assert reached
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_one_is_raised_at_once() -> None:
    interrupts = Interrupts(lambda: None)

    def press_twice() -> None:
        with interrupts.held():
            press()
            press()
            pytest.fail("it was not raised")

    with pytest.raises(KeyboardInterrupt):
        press_twice()
    with interrupts.held():
        interrupts.check()


def test_a_handler_of_the_programs_own_stays() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    try:
        with Interrupts(lambda: pytest.fail("not ours")).held():
            press()
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == [signal.SIGINT]


def test_another_thread_changes_no_handler() -> None:
    def hold() -> None:
        with Interrupts(lambda: None).held():
            handlers.append(signal.getsignal(signal.SIGINT))

    handlers: list[object] = []
    thread = threading.Thread(target=hold)
    thread.start()
    thread.join()
    assert handlers == [signal.default_int_handler]
