"""The only raw ordered loads and stores, and the fence.

A 64-bit word of a memoryview cast to "Q" is read and written by one aligned move, so it is never seen half written. What
order other processors see is another matter:

- Publishing (payload, then HEAD; consuming, then TAIL) needs the earlier accesses to be visible first. x86-64 keeps stores
  in order, and loads in order, by itself.
- Parking needs more: the waiter stores its parked word and then loads the position; the other side stores the position and
  then loads the parked word. x86-64 may let a load pass an earlier store, and then both sides see the old value and the
  waiter sleeps for ever. Only a full fence between the two prevents it.

CPython offers no fence. Taking and giving back a lock is one on x86-64 (a locked instruction). On aarch64 one such pair is
not: accesses may move into the critical section from both ends. Two pairs in a row are, because a release followed by an
acquire is ordered there (both are of the sequentially consistent kind): what comes before the first release stays before
the second acquire. `load` and `publish` therefore fence on every machine that is not x86-64.

Every access whose order matters bears a mark, `order: NAME, side A` or `side B`; the two sides of a name explain each other.
"""

import mmap
import platform
import threading

Words = memoryview  # of format "Q"

_lock = threading.Lock()
_acquire, _release = _lock.acquire, _lock.release  # bound once: twice as fast as a `with`


def words_of(memory: mmap.mmap, size: int) -> Words:
    """The first `size` bytes of the memory as 64-bit words."""
    return memoryview(memory)[:size].cast("Q")


if platform.machine() in ("x86_64", "AMD64"):

    def load(words: Words, index: int) -> int:
        """Read a word. Later reads are not seen to happen before it (load-acquire)."""
        return words[index]

    def publish(words: Words, index: int, value: int) -> None:
        """Write a word after everything written or read before it (store-release)."""
        words[index] = value

    def fence() -> None:
        """Full fence: no access moves across it in either direction."""
        _acquire()
        _release()

    def publish_fenced(words: Words, index: int, value: int) -> None:
        """`publish` and `fence` in one call, since a call costs as much as the work."""
        words[index] = value
        _acquire()
        _release()

else:

    def load(words: Words, index: int) -> int:
        """Read a word. Later reads are not seen to happen before it (load-acquire)."""
        value: int = words[index]
        fence()
        return value

    def publish(words: Words, index: int, value: int) -> None:
        """Write a word after everything written or read before it (store-release)."""
        fence()
        words[index] = value

    def fence() -> None:
        """Full fence: no access moves across it in either direction."""
        _acquire()
        _release()
        _acquire()
        _release()

    def publish_fenced(words: Words, index: int, value: int) -> None:
        """`publish` and `fence` in one call."""
        publish(words, index, value)
        fence()
