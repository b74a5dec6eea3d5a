"""Errors a user of the engine can meet, besides the ValueError of a bad request."""

from typing import TypeVar

from ..ipc.messages.failure import Failure

E = TypeVar("E", bound=BaseException)

SHUT_DOWN = "the engine was shut down"

# Kinds of failures that a request has caused by what it asks for, and the parameter to name.
AT_FAULT = {
    "RequestTooLong": "prompt",
    "DoesNotFit": "prompt",
    "NoTokenLeft": "allowed_token_ids",
    "TooManyLogprobs": "prompt_logprobs",
    "LogprobsTooLarge": "logprobs",
}


class EngineError(Exception):
    """Root of the engine's errors."""


class EngineStartError(EngineError):
    """A process failed while the engine started; the message is that process's reason. Nothing is left running."""


class EngineDeadError(EngineError):
    """A process of the running engine died; the message says which and why. The engine takes no more requests."""


class EngineRecoveringError(EngineError):
    """A process of the engine died and is being replaced; the message says which and why. Requests wait, and go on."""


class EngineHungError(EngineError):
    """A process holds a message for longer than it may; the message says which process and what. It may still go on."""


class EngineGenerateError(EngineError):
    """One request failed inside the engine; others go on."""


class NoAnswerError(EngineError):
    """A question to another actor got no answer in time; the message says which actor, which question, and how long."""


class RequestEnded(EngineError):
    """More was asked of a request or session that has given its last output, or was closed. A fault of the caller; harmless."""


class TooManySessions(EngineError):
    """As many sessions are open as may be (max_sessions). Trying again later helps."""


class SessionTimeout(EngineGenerateError):
    """A session got no input, and made no answer, for as long as it may be idle, and was ended."""


def failure_text(failure: Failure) -> str:
    """One line for a user: who failed, and why."""
    return f"{failure.actor} (pid {failure.pid}): {failure.kind}: {failure.message}"


def failure_report(failure: Failure) -> str:
    """For a log: the line, and the traceback where there is one."""
    return f"{failure_text(failure)}\n{failure.traceback}" if failure.traceback else failure_text(failure)


def deadly_text(reason: str) -> str:
    """What a request is told that the engine ends because processes die of it; `reason` is that of the last death."""
    return f"{reason}; it computed this request alone, which was in hand at earlier deaths too"


def copy_of(error: E) -> E:
    """The same error once more: raising an exception writes to it, so whoever waits gets one each."""
    copy = type(error).__new__(type(error), *error.args)  # not every constructor takes what it leaves in `args`
    copy.args = error.args
    copy.__dict__.update(error.__dict__)
    return copy
