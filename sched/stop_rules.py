"""StopRules: which token ends a request. Stop strings are the frontend's, for only it has text."""

from ..ipc.messages.outputs import FinishReason
from ..ipc.messages.requests import AddRequest


class StopRules:
    """The rules of one request, in the order in which they count: end of sequence, stop token ids, length.

    The first two count only after `min_tokens` tokens of output; the workers do not sample such a token before.
    """

    __slots__ = ("_eos", "_ids", "_min_tokens", "max_output")

    def __init__(self, request: AddRequest, max_model_len: int) -> None:
        params = request.params
        room = max_model_len - len(request.prompt)
        self.max_output = room if params.max_tokens is None else min(room, params.max_tokens)
        self._min_tokens = params.min_tokens
        self._eos = frozenset() if params.ignore_eos else frozenset(request.eos_token_ids)
        self._ids = self._eos.union(params.stop_token_ids)

    def check(self, token: int, num_output: int) -> tuple[FinishReason, int | None] | None:
        """Finish reason and stop reason if `token`, the output's `num_output`-th, is the last one; else None."""
        if token in self._ids and num_output > self._min_tokens:
            return ("stop", None) if token in self._eos else ("stop", token)
        if num_output >= self.max_output:
            return ("length", None)
        return None
