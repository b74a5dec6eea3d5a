"""Who has to give up blocks or a row when there are not enough."""

from collections.abc import Iterable

from .kv_cache_manager import KVCacheManager
from .request import Request


def recompute_cost(request: Request, manager: KVCacheManager) -> int:
    """Positions that would have to be computed again if the request lost its blocks. Those that others hold too stay."""
    return max(request.num_computed - manager.num_shared(request) * manager.block_size, 0)


def choose_victim(candidates: Iterable[Request], manager: KVCacheManager) -> Request | None:
    """Of those with the worst priority, the one that is cheapest to compute again, and of equal ones the one that came last.

    One all of whose blocks are shared would free nothing, and is passed over. None if there is nobody else.
    """
    victim, least = None, (0, 0, 0)
    for request in candidates:
        if manager.yields(request):
            priority, number = request.rank
            cost = (-priority, recompute_cost(request, manager), -number)
            if victim is None or cost < least:
                victim, least = request, cost
    return victim
