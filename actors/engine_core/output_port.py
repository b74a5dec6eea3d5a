"""Where the core puts a frontend's outputs: sent at once when there is room, else merged per request until there is."""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from ...ipc.errors import PeerGone, WouldBlock
from ...ipc.mailbox import Sender
from ...ipc.messages.outputs import OutputMessage, StepOutputs, TokenDelta
from ...ipc.parking import Parkable

# Pending tokens at which a request is to stop. A frontend that is busy for some seconds does not come this far; and if it
# never reads again, ten thousand requests hold some twenty megabytes.
PENDING_TOKENS = 256
_MESSAGE_BYTES = 1 << 17  # a frontend that catches up gets slices it can take in one go
_BYTES_A_TOKEN = 5  # encoded, at most
_BYTES_A_DELTA = 80  # encoded, besides its tokens


class Flow(NamedTuple):
    """Requests whose pending tokens have reached PENDING_TOKENS, and such requests that have nothing pending any more."""

    overfull: list[int]
    drained: list[int]


class OutputPort:
    """Outputs to one frontend. The core never waits for a frontend that does not read.

    Memory is bounded as long as requests that are reported as overfull get no more tokens, but for the few in flight, until
    they are reported as drained; replies and failures are one a call or request.
    """

    def __init__(self, sender: Sender[OutputMessage]) -> None:
        self._sender = sender
        self._room = min(sender.largest_nowait, _MESSAGE_BYTES) - _BYTES_A_DELTA  # bytes of deltas in a message
        self._deltas: dict[int, TokenDelta] = {}  # pending, at most one a request
        self._messages: list[OutputMessage] = []  # pending, after the deltas
        self._full = False  # the mailbox, when we last looked
        self._large: set[int] = set()  # requests that have come to PENDING_TOKENS and are not reported yet
        self._overfull: set[int] = set()  # those that are
        self._drained: list[int] = []  # those of them that have nothing pending any more
        self._left = False  # the frontend has gone, and nothing can be told it any more

    def put_deltas(self, deltas: Iterable[TokenDelta]) -> None:
        """Add tokens; those of a request that still waits are merged with the new ones."""
        for delta in () if self._left else deltas:
            waiting = self._deltas.get(delta.request)
            merged = self._deltas[delta.request] = delta if waiting is None else merge_deltas(waiting, delta)
            if len(merged.tokens) >= PENDING_TOKENS and delta.request not in self._overfull:
                self._large.add(delta.request)

    def forget(self, request: int) -> None:
        """Drop the tokens of a request that nobody waits for any more."""
        if self._deltas.pop(request, None) is not None:
            self._settle(request)

    def put(self, message: OutputMessage) -> None:
        """Add a reply or a failure."""
        if not self._left:
            self._messages.append(message)

    def flush(self, step: int) -> Flow:
        """Send what there is room for; returns which requests have to stop for now, and which can go on."""
        if not self._full or self._sender.ready():  # else it would be encoded in vain, at every step
            self._send(step)
        flow = Flow(sorted(self._large), self._drained)
        self._overfull |= self._large
        self._large, self._drained = set(), []
        return flow

    def _send(self, step: int) -> None:
        self._full = False
        try:
            while part := self._next_part():
                self._sender.send_nowait(StepOutputs(step, part))
                for delta in part:
                    self._drop(delta)
            while self._messages:
                self._sender.send_nowait(self._messages[0])
                del self._messages[0]
        except WouldBlock:
            self._full = True
        except PeerGone:
            self._left = True
            self._deltas.clear()
            self._messages.clear()

    def _next_part(self) -> list[TokenDelta]:
        """As much of what is pending as one message can hold: whole deltas, or the beginning of one that is too long."""
        part: list[TokenDelta] = []
        room = self._room
        for delta in self._deltas.values():
            size = _BYTES_A_DELTA + _BYTES_A_TOKEN * len(delta.tokens)
            if size > room:
                return part or [_beginning(delta, (room - _BYTES_A_DELTA) // _BYTES_A_TOKEN)]
            part.append(delta)
            room -= size
        return part

    def _drop(self, sent: TokenDelta) -> None:
        """Take what was sent out of what is pending."""
        pending = self._deltas[sent.request]
        if pending is sent:
            del self._deltas[sent.request]
            self._settle(sent.request)
        else:
            count = len(sent.tokens)
            rest = msgspec.structs.replace(pending, position=pending.position + count, tokens=pending.tokens[count:])
            self._deltas[sent.request] = rest

    def _settle(self, request: int) -> None:
        """A request has nothing pending any more."""
        self._large.discard(request)
        if request in self._overfull:
            self._overfull.remove(request)
            self._drained.append(request)

    def ends(self) -> list[Parkable]:
        """What to wait for to send the rest."""
        return [self._sender] if self._deltas or self._messages else []


def merge_deltas(first: TokenDelta, second: TokenDelta) -> TokenDelta:
    """Both deltas of one request as one; `second` follows `first` without a gap."""
    assert second.position == first.position + len(first.tokens), (first, second)
    return TokenDelta(
        first.request,
        first.position,
        first.tokens + second.tokens,
        second.finish_reason,
        second.stop_reason,
        first.cached_tokens,
        first.scheduled,
    )


def _beginning(delta: TokenDelta, count: int) -> TokenDelta:
    """A delta's first tokens; its end is told by the rest."""
    return msgspec.structs.replace(delta, tokens=delta.tokens[:count], finish_reason=None, stop_reason=None)
