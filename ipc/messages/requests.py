"""Mailbox requests[a,d], frontend -> engine core: one writer, one reader."""

from typing import Literal

from .base import Message, Record
from .sampling import SamplingParams

FRONTEND_SHIFT = 48  # the number of a request or call is frontend index << FRONTEND_SHIFT | counter


class CacheKey(Record, frozen=True):
    """Something besides the tokens that KV depends on from this position on: an adapter (position 0), an image."""

    position: int
    key: str


class Sibling(Record, frozen=True):
    """Another answer to the same prompt: a request of its own in everything else."""

    request: int
    seed: int


class AddRequest(Message, frozen=True):
    """Start a request, or go on with one whose core was restarted."""

    request: int  # unique in the engine, see FRONTEND_SHIFT
    external_id: str  # the caller's id, for logs and errors only
    prompt: list[int]
    params: SamplingParams  # seed is set: results do not depend on the process that samples
    arrival: float  # seconds of CLOCK_MONOTONIC, which all processes of a machine share
    eos_token_ids: tuple[int, ...] = ()
    priority: int = 0  # lower runs earlier
    output: list[int] = []  # tokens already delivered before a restart; still output for every rule
    cache_salt: str = ""  # requests share cached prefixes only under the same salt
    cache_keys: tuple[CacheKey, ...] = ()  # and only where these agree
    deaths: int = 0  # of cores that may have had it in flight, without a token of it since
    deaths_alone: int = 0  # those of them at which it was in flight alone
    siblings: tuple[Sibling, ...] = ()  # they share the prompt's KV, which is computed once; none of them has output yet
    session: int = 0  # whose turn this is; 0: no session's. It begins with its first turn
    base: int = 0  # tokens of the session's context, cut to this length, that come before `prompt`; 0: it starts over


class Truncate(Message, frozen=True):
    """Let go of a session's context behind so many tokens. Nothing happens to one that is unknown or has a turn: the `base` of
    the next turn says the same.
    """

    session: int
    length: int


class Fork(Message, frozen=True):
    """A session begins with so many tokens of another one's context, sharing its blocks. Also while that one has a turn."""

    session: int
    child: int
    length: int


class CloseSession(Message, frozen=True):
    """Forget a session and free what it holds; its turn, if there is one, ends as by Abort. Unknown ones are ignored."""

    session: int


class Abort(Message, frozen=True):
    """Stop a request and free what it holds. Unknown ids are ignored, so aborting twice is harmless."""

    request: int


class Resume(Message, frozen=True):
    """A restarted core discards what it reads until the Resume of its own epoch."""

    epoch: int


class ResetPrefixCache(Message, frozen=True):
    """Forget cached blocks; answered by a UtilityReply."""

    call: int
    preempt_running: bool = False


class DescribeEngine(Message, frozen=True):
    """Ask for the numbers of the core; answered by a UtilityReply with an EngineDescription."""

    call: int
    workers: bool = False  # and for those of the workers, which answer between two steps


PauseMode = Literal["abort", "wait", "keep"]


class PauseGeneration(Message, frozen=True):
    """Plan no more steps once the running requests are aborted or finished, or at once and keep them as they are.

    New requests are taken, and wait. Answered by a UtilityReply as soon as nothing is in flight any more.
    """

    call: int
    mode: PauseMode
    clear_cache: bool = True  # empty the prefix cache then


class ResumeGeneration(Message, frozen=True):
    """Go on after PauseGeneration; answered by a UtilityReply."""

    call: int


RequestMessage = (
    AddRequest
    | Truncate
    | Fork
    | CloseSession
    | Abort
    | Resume
    | ResetPrefixCache
    | DescribeEngine
    | PauseGeneration
    | ResumeGeneration
)
