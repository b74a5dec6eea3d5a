"""How much of what a step brings is delivered in one turn of the event loop: some milliseconds of work."""

from collections import deque
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from ...ipc.messages.outputs import TokenDelta, TokenLogprobs

_DELTAS = 64
_ENTRIES = 1024  # of logprobs


def _entries(logprobs: Sequence[TokenLogprobs]) -> int:
    return sum([1 + len(one.top_logprobs) // 4 for one in logprobs])


def pieces(delta: TokenDelta) -> Iterator[TokenDelta]:
    """The same news in deltas that are not too large for one turn: what is said of the prompt first."""
    if not delta.prompt_logprobs:
        yield delta
        return
    each = max(_ENTRIES // _entries(delta.prompt_logprobs[:1]), 1)
    last = (len(delta.prompt_logprobs) - 1) // each * each
    for begin in range(0, last, each):
        part, start = delta.prompt_logprobs[begin : begin + each], delta.prompt_start + begin
        yield TokenDelta(delta.request, delta.position, [], prompt_logprobs=part, prompt_start=start)
    yield replace(delta, prompt_logprobs=delta.prompt_logprobs[last:], prompt_start=delta.prompt_start + last)


def take_slice(waiting: deque[TokenDelta]) -> list[TokenDelta]:
    """Take the next ones, at least one, as many as a turn may deliver."""
    taken, entries = list[TokenDelta](), 0
    while waiting and len(taken) < _DELTAS and entries < _ENTRIES:
        delta = waiting.popleft()
        taken.append(delta)
        if delta.logprobs or delta.prompt_logprobs:
            entries += _entries(delta.logprobs) + _entries(delta.prompt_logprobs)
    return taken
