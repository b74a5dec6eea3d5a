"""Arrivals: requests as they come, checked, numbered and ranked."""

from collections.abc import Container

from msgspec.structs import replace

from ..ipc.messages.requests import AddRequest, Sibling
from .errors import DuplicateRequest, RequestTooLong
from .kv_cache_manager import KVCacheManager
from .request import Request


def sibling_request(request: AddRequest, sibling: Sibling) -> AddRequest:
    """What a sibling would be as a request of its own. What is known of the first one's deaths may have been its doing too."""
    params = request.params.derive(seed=sibling.seed, prompt_logprobs=None)
    return replace(request, request=sibling.request, params=params, output=[], siblings=())


class Arrivals:
    """Makes Requests. Their ranks are in the order of arrival, and with `by_priority` behind their priority."""

    __slots__ = ("_by_priority", "_max_model_len", "_number")

    def __init__(self, *, max_model_len: int, by_priority: bool) -> None:
        self._max_model_len = max_model_len
        self._by_priority = by_priority
        self._number = 0  # of requests so far

    def make(self, request: AddRequest, manager: KVCacheManager, known: Container[int]) -> list[Request]:
        """A request, and its siblings behind it. `known` are the numbers of unfinished ones.

        Raises RequestTooLong, DoesNotFit or DuplicateRequest, or ValueError for an empty prompt.
        """
        seen = set[int]()
        for number in (request.request, *(sibling.request for sibling in request.siblings)):
            if number in known or number in seen:
                raise DuplicateRequest(number, request.external_id)
            seen.add(number)
        prompt_tokens = len(request.prompt)
        if not prompt_tokens:
            raise ValueError("prompt must hold at least one token, got none")
        if prompt_tokens >= self._max_model_len:
            raise RequestTooLong(prompt_tokens=prompt_tokens, max_model_len=self._max_model_len)
        made = [self._make(request, manager)]
        manager.check_fits(made[0])
        made += [self._make(sibling_request(request, sibling), manager) for sibling in request.siblings]
        return made

    def _make(self, request: AddRequest, manager: KVCacheManager) -> Request:
        made = Request(request, max_model_len=self._max_model_len, block_size=manager.block_size, number=self._number)
        if not self._by_priority:
            made.rank = (0, self._number)
        self._number += 1
        return made
