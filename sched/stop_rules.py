"""StopRules: which token ends a request. Stop strings are the frontend's, for only it has text."""

from collections.abc import Sequence

from ..ipc.messages.outputs import FinishReason
from ..ipc.messages.requests import AddRequest
from .repetition import Repetition


class StopRules:
    """The rules of one request, in the order in which they count: end of sequence, stop token ids, length, repetition.

    The first two count only after `min_tokens` tokens of output, and the workers do not sample such a token before; the last
    one from the token on that completes them.
    """

    __slots__ = ("_eos", "_ids", "_min_tokens", "_repetition", "max_output")

    def __init__(self, request: AddRequest, max_model_len: int) -> None:
        params = request.params
        room = max_model_len - len(request.prompt)
        self.max_output = room if params.max_tokens is None else min(room, params.max_tokens)
        self._min_tokens = params.min_tokens
        self._eos = frozenset() if params.ignore_eos else frozenset(request.eos_token_ids)
        self._ids = self._eos.union(params.stop_token_ids)
        rule = params.repetition_detection
        self._repetition = None if rule is None else Repetition(rule)

    def check(self, token: int, num_output: int, output: Sequence[int]) -> tuple[FinishReason, int | None] | None:
        """Finish reason and stop reason if `token`, the `num_output`-th, which comes after `output`, is the last; else None.

        To be asked once for each token, in order.
        """
        repeated = self._repetition is not None and self._repetition.ends_in(output, token)
        if token in self._ids and num_output > self._min_tokens:
            return ("stop", None) if token in self._eos else ("stop", token)
        if num_output >= self.max_output:
            return ("length", None)
        if repeated and num_output >= self._min_tokens:
            return ("repetition", None)
        return None
