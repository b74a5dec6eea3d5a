"""Deltas that wait for room: how large they are, two of a request as one, and the beginning of one that is too large."""

from collections.abc import Iterable

from msgspec.structs import replace

from ...ipc.messages.outputs import TokenDelta, TokenLogprobs

BYTES_A_DELTA = 100  # encoded at most, besides what is in its lists
BYTES_A_MESSAGE = 80  # the same of a StepOutputs
_BYTES_A_TOKEN = 5
_BYTES_AN_ENTRY = 30  # of logprobs, besides its columns


def size_of(delta: TokenDelta) -> int:
    """Bytes of a delta, encoded, at most."""
    size = BYTES_A_DELTA + _BYTES_A_TOKEN * len(delta.tokens)
    if delta.logprobs or delta.prompt_logprobs:
        size += sum(map(size_of_logprobs, delta.logprobs)) + sum(map(size_of_logprobs, delta.prompt_logprobs))
    return size


def size_of_logprobs(entry: TokenLogprobs) -> int:
    """Bytes of what is said of a token, encoded, at most."""
    return _BYTES_AN_ENTRY + len(entry.top_ids) + len(entry.top_logprobs)


def merge_deltas(first: TokenDelta, second: TokenDelta) -> TokenDelta:
    """Both deltas of one request as one; `second` follows `first` without a gap."""
    assert second.position == first.position + len(first.tokens), (first, second)
    start, entries = first.prompt_start, first.prompt_logprobs
    if second.prompt_logprobs:
        if not entries:
            start = second.prompt_start
        known = start + len(entries) - second.prompt_start  # those that come again
        if known >= 0:  # else what lies between was left out, and nobody waits for the rest
            entries = entries + second.prompt_logprobs[known:]
    return TokenDelta(
        first.request,
        first.position,
        first.tokens + second.tokens,
        second.finish_reason,
        second.stop_reason,
        first.cached_tokens,
        first.scheduled or second.scheduled,
        first.logprobs + second.logprobs if second.logprobs else first.logprobs,
        entries,
        start,
        first.queued or second.queued,
        second.preemptions,
    )


def beginning(delta: TokenDelta, room: int) -> TokenDelta:
    """As much of a delta as fits into `room` bytes, its prompt's logprobs first, or at least one entry or token of it.

    Unless that is all, the end is told by the rest.
    """
    room -= BYTES_A_DELTA
    entries, tokens = delta.prompt_logprobs, 0
    told = _fitting(map(size_of_logprobs, entries), room)
    if told == len(entries):
        room -= sum(map(size_of_logprobs, entries))
        sizes: Iterable[int] = [_BYTES_A_TOKEN] * len(delta.tokens)
        if delta.logprobs:
            sizes = (_BYTES_A_TOKEN + size_of_logprobs(entry) for entry in delta.logprobs)
        tokens = _fitting(sizes, room)
    if not (told or tokens):
        told, tokens = (1, 0) if entries else (0, 1)
    if (told, tokens) == (len(entries), len(delta.tokens)):
        return delta
    part = {"tokens": delta.tokens[:tokens], "logprobs": delta.logprobs[:tokens], "prompt_logprobs": entries[:told]}
    return replace(delta, **part, finish_reason=None, stop_reason=None)


def rest_of(delta: TokenDelta, sent: TokenDelta) -> TokenDelta:
    """What is left of a delta after its `beginning` was sent."""
    count, entries = len(sent.tokens), len(sent.prompt_logprobs)
    return replace(
        delta,
        position=delta.position + count,
        tokens=delta.tokens[count:],
        logprobs=delta.logprobs[count:],
        prompt_logprobs=delta.prompt_logprobs[entries:],
        prompt_start=delta.prompt_start + entries,
    )


def _fitting(sizes: Iterable[int], room: int) -> int:
    """How many of these, from the first, fit."""
    count = 0
    for size in sizes:
        room -= size
        if room < 0:
            break
        count += 1
    return count
