"""Mailbox load, cores -> coordinator -> frontends: boards on which the latest value wins."""

from .base import Message


class LoadStats(Message, frozen=True):
    """How busy a core is."""

    core: int
    running: int
    waiting: int
    used_blocks: int
    num_blocks: int
    preemptions: int = 0  # since the core started, as the following
    prefix_queries: int = 0  # prompt tokens that were looked up in the prefix cache
    prefix_hits: int = 0  # those of them that were found


class WaveState(Message, frozen=True):
    """Whether the cores step in lock-step, and in which wave."""

    wave: int
    running: bool


LoadMessage = LoadStats | WaveState
