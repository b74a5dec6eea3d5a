"""SessionOutputs: the outputs of a session, one turn after the other."""

from collections import deque
from collections.abc import Callable

from ...ipc.messages.outputs import FinishReason
from .outputs import CompletionOutput, RequestOutput
from .session_turn import Turn


class SessionOutputs:
    """What a session's collector takes from. No output holds anything of two chunks; each chunk's last one has its boundary,
    and the session's last one says finished.
    """

    def __init__(self, external_id: str, on_taken: Callable[[], None]) -> None:
        """`on_taken` is called when the last output of a turn, or of the session, was taken."""
        self.external_id = external_id
        self.finished = False  # the last output was taken
        self._on_taken = on_taken
        self._turns: deque[Turn] = deque()  # whose last outputs were not taken
        self._ended = False
        self._abort = False  # the session was aborted, which the last output says
        self._reason: FinishReason = "stop"  # of the turn whose last output was taken last

    def __len__(self) -> int:
        """Turns whose last output was not taken, with the one that runs."""
        return len(self._turns)

    def add(self, turn: Turn) -> None:
        """A turn begins."""
        self._turns.append(turn)

    def cut(self, length: int) -> None:
        """The context was cut to this length: what lies behind, and was not told, is not told any more."""
        for turn in self._turns:
            if turn.boundary is not None and turn.boundary.context_length > length:
                turn.live.interrupt(max(turn.answer.num_told, length - turn.answer_start))
                turn.end(length)

    def end(self, *, abort: bool = False) -> None:
        """No turn begins any more. With `abort` the last output says so: that of a turn which runs, else one of its own."""
        self._ended, self._abort = True, abort

    @property
    def has_output(self) -> bool:
        """See OutputSource."""
        return self._turns[0].live.has_output if self._turns else self._ended and not self.finished

    def take(self) -> RequestOutput | None:
        """See OutputSource."""
        if not self.has_output:
            return None
        if not self._turns:
            reason: FinishReason = "abort" if self._abort else self._reason
            last = RequestOutput(self.external_id, None, [], [CompletionOutput(0, "", [], finish_reason=reason)], True)
            return self._taken(last, last=True)
        turn = self._turns[0]
        output = turn.live.take()
        assert output is not None
        if not output.finished:
            return output
        self._turns.popleft()
        turn.live.prompt_token_ids = []  # the output's now: an idle session holds its context once
        output.boundary = turn.boundary
        if turn.boundary is not None:
            self._reason = turn.boundary.finish_reason
        ends_here = turn.boundary is None or not self._abort
        return self._taken(output, last=self._ended and not self._turns and ends_here)

    def _taken(self, output: RequestOutput, *, last: bool) -> RequestOutput:
        output.finished = self.finished = last
        self._on_taken()
        return output
