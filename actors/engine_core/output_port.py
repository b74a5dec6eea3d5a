"""Where the core puts a frontend's outputs: sent at once when there is room, else merged per request until there is."""

from collections.abc import Iterable
from typing import NamedTuple

from ...ipc.errors import PeerGone, WouldBlock
from ...ipc.mailbox import Sender
from ...ipc.messages.outputs import OutputMessage, StepOutputs, TokenDelta
from ...ipc.parking import Parkable
from .deltas import BYTES_A_MESSAGE, beginning, merge_deltas, rest_of, size_of

# Pending tokens at which a request is to stop. A frontend that is busy for some seconds does not come this far; and if it
# never reads again, ten thousand requests hold some twenty megabytes.
PENDING_TOKENS = 256
# With logprobs, the bytes at which it is to stop too: its own, and those of all that are pending.
PENDING_BYTES = 1 << 20
ALL_PENDING_BYTES = 1 << 26
_MESSAGE_BYTES = 1 << 17  # a frontend that catches up gets slices it can take in one go


class Flow(NamedTuple):
    """What is to happen to requests."""

    overfull: list[int]  # too much of theirs is pending
    drained: list[int]  # such ones, that have nothing pending any more
    too_large: tuple[int, ...] = ()  # what is said of one token fits into no message, and has been dropped


class OutputPort:
    """Outputs to one frontend. The core never waits for a frontend that does not read.

    Memory is bounded as long as requests that are reported as overfull get no more tokens, but for the few in flight, until
    they are reported as drained; replies and failures are one a call or request.
    """

    def __init__(self, sender: Sender[OutputMessage]) -> None:
        self._sender = sender
        self._most = sender.largest_nowait - BYTES_A_MESSAGE  # bytes of deltas in a message
        self._room = min(self._most, _MESSAGE_BYTES)  # the same where they can be cut
        self._deltas: dict[int, TokenDelta] = {}  # pending, at most one a request
        self._sizes: dict[int, int] = {}  # bytes of those of them with logprobs
        self._bytes = 0  # the sum of these
        self._messages: list[OutputMessage] = []  # pending, after the deltas
        self._full = False  # the mailbox, when we last looked
        self._large: set[int] = set()  # requests that have come to PENDING_TOKENS and are not reported yet
        self._overfull: set[int] = set()  # those that are
        self._drained: list[int] = []  # those of them that have nothing pending any more
        self._too_large: list[int] = []  # requests that can be told nothing, and are not reported yet
        self._left = False  # the frontend has gone, and nothing can be told it any more

    def put_deltas(self, deltas: Iterable[TokenDelta]) -> None:
        """Add tokens; those of a request that still waits are merged with the new ones."""
        for delta in () if self._left else deltas:
            waiting = self._deltas.get(delta.request)
            merged = delta if waiting is None else merge_deltas(waiting, delta)
            size = self._keep(merged)
            large = size >= PENDING_BYTES or (size > 0 and self._bytes >= ALL_PENDING_BYTES)
            if (large or len(merged.tokens) >= PENDING_TOKENS) and delta.request not in self._overfull:
                self._large.add(delta.request)

    def _keep(self, delta: TokenDelta) -> int:
        """This is what is pending of its request; returns its bytes if it has logprobs, else 0."""
        self._deltas[delta.request] = delta
        self._bytes -= self._sizes.pop(delta.request, 0)
        if not (delta.logprobs or delta.prompt_logprobs):
            return 0
        size = self._sizes[delta.request] = size_of(delta)
        self._bytes += size
        return size

    def forget(self, request: int) -> None:
        """Drop the tokens of a request that nobody waits for any more."""
        if self._deltas.pop(request, None) is not None:
            self._settle(request)

    def put(self, message: OutputMessage) -> None:
        """Add a reply or a failure."""
        if not self._left:
            self._messages.append(message)

    def flush(self, step: int) -> Flow:
        """Send what there is room for; returns which requests have to stop for now, can go on, or have failed."""
        if not self._full or self._sender.ready():  # else it would be encoded in vain, at every step
            self._send(step)
        flow = Flow(sorted(self._large), self._drained, tuple(self._too_large))
        self._overfull |= self._large
        self._large, self._drained, self._too_large = set(), [], []
        return flow

    def _send(self, step: int) -> None:
        self._full = False
        try:
            while part := self._next_part():
                if len(part) == 1 and size_of(part[0]) > self._most:
                    self._too_large.append(part[0].request)
                    self.forget(part[0].request)
                    continue
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
            self._sizes.clear()
            self._bytes = 0
            self._messages.clear()

    def _next_part(self) -> list[TokenDelta]:
        """As much of what is pending as one message can hold: whole deltas, or the beginning of one that is too long."""
        part: list[TokenDelta] = []
        room = self._room
        for delta in self._deltas.values():
            size = size_of(delta)
            if size > room:
                return part or [beginning(delta, room)]
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
            self._keep(rest_of(pending, sent))

    def _settle(self, request: int) -> None:
        """A request has nothing pending any more."""
        self._bytes -= self._sizes.pop(request, 0)
        self._large.discard(request)
        if request in self._overfull:
            self._overfull.remove(request)
            self._drained.append(request)

    def ends(self) -> list[Parkable]:
        """What to wait for to send the rest."""
        return [self._sender] if self._deltas or self._messages else []
