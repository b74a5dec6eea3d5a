"""Where the core puts a frontend's outputs: sent at once when there is room, else merged per request until there is."""

from collections.abc import Iterable, Iterator

from ...ipc.errors import WouldBlock
from ...ipc.mailbox import Sender
from ...ipc.messages.outputs import OutputMessage, StepOutputs, TokenDelta
from ...ipc.parking import Parkable

_TOKENS_A_MESSAGE = 1 << 14  # keeps a message far below what send_nowait can take
_TOKENS_A_DELTA = 16  # what a delta takes besides its tokens, in tokens


class OutputPort:
    """Outputs to one frontend. The core never waits for a frontend that does not read."""

    def __init__(self, sender: Sender[OutputMessage]) -> None:
        self._sender = sender
        self._deltas: dict[int, TokenDelta] = {}  # pending, at most one a request
        self._messages: list[OutputMessage] = []  # pending, after the deltas

    def put_deltas(self, deltas: Iterable[TokenDelta]) -> None:
        """Add tokens; those of a request that still waits are merged with the new ones."""
        for delta in deltas:
            waiting = self._deltas.get(delta.request)
            self._deltas[delta.request] = delta if waiting is None else merge_deltas(waiting, delta)

    def put(self, message: OutputMessage) -> None:
        """Add a reply or a failure."""
        self._messages.append(message)

    def flush(self, step: int) -> None:
        """Send what there is room for."""
        try:
            for deltas in list(_slices(self._deltas)):
                self._sender.send_nowait(StepOutputs(step, deltas))
                for delta in deltas:
                    del self._deltas[delta.request]
            while self._messages:
                self._sender.send_nowait(self._messages[0])
                del self._messages[0]
        except WouldBlock:
            pass

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


def _slices(deltas: dict[int, TokenDelta]) -> Iterator[list[TokenDelta]]:
    part: list[TokenDelta] = []
    size = 0
    for delta in deltas.values():
        part.append(delta)
        size += len(delta.tokens) + _TOKENS_A_DELTA
        if size >= _TOKENS_A_MESSAGE:
            yield part
            part, size = [], 0
    if part:
        yield part
