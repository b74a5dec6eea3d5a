"""Siblings: several answers to one prompt, which is computed once.

One of a group leads it, and is a request like any other; the others follow, and do nothing. When the prompt is computed they
become ordinary requests too. Its KV is held once for all of them, until they have ended or others need the blocks: who enters a
row without blocks, for the first time or again, begins with it. A leader that ends or is parked before that is succeeded by the
first that follows. The leader is the oldest, so nobody waits for one that would come later.
"""

from collections import deque
from collections.abc import Iterable

from .held_prompt import HeldPrompt
from .kv_cache_manager import KVCacheManager
from .ranked_queue import RankedQueue
from .request import Request, RequestState


class Siblings:
    """Who follows whom. `groups` is by the leader's number; who has left a group stays in its list, in another state.

    `held` are the prompts that are held, the first one held first.
    """

    __slots__ = ("_manager", "_waiting", "groups", "held")

    def __init__(self, manager: KVCacheManager, waiting: RankedQueue) -> None:
        self._manager = manager
        self._waiting = waiting
        self.groups: dict[int, deque[Request]] = {}
        self.held: dict[HeldPrompt, None] = {}

    def follow(self, leader: Request, followers: Iterable[Request]) -> None:
        """Let requests that are in no queue follow one that has no output. There is at least one."""
        group = self.groups[leader.request_id] = deque(followers)
        for follower in group:
            follower.state = RequestState.FOLLOWING

    def fork(self, leader: Request) -> None:
        """The result of the step that computed the leader's whole prompt is there: those that follow it wait for their turns.

        If the leader has lost its blocks since, the first of them computes the prompt again.
        """
        begun = len(leader.prompt) - 1  # the last token is computed again, for its logits
        if leader.num_computed <= begun:
            self.let_go(leader)
            return
        group = self.groups.pop(leader.request_id, ())
        followers = [follower for follower in group if follower.state is RequestState.FOLLOWING]
        if followers:
            leader.held = self._manager.hold(leader, begun)
            leader.held.members = 1 + len(followers)
            self.held[leader.held] = None
        for follower in followers:
            follower.held = leader.held
            self._wait(follower)

    def let_go(self, leader: Request) -> None:
        """A request leads no more: the first of those that followed it does."""
        group = self.groups.pop(leader.request_id, deque[Request]())
        while group:
            first = group.popleft()
            if first.state is RequestState.FOLLOWING:
                self._wait(first)
                self.groups[first.request_id] = group
                return

    def ended(self, request: Request) -> None:
        """What was held for a request alone is held no more."""
        held, request.held = request.held, None
        if held is not None:
            held.members -= 1
            if not held.members:
                self.give_up(held)

    def give_up(self, held: HeldPrompt) -> None:
        """Free what is held. Its members compute it again."""
        self._manager.pool.free(reversed(held.block_table))
        held.block_table = []
        self.held.pop(held, None)

    def give_up_all(self) -> None:
        """Free all that is held."""
        for held in list(self.held):
            self.give_up(held)

    def _wait(self, follower: Request) -> None:
        follower.state = RequestState.WAITING
        self._waiting.push(follower)
