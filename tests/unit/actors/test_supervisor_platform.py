"""What the supervisor says where it cannot work."""

import os
import resource

import pytest

from ringpost import EngineConfig, EngineStartError
from ringpost.actors import topology
from ringpost.actors.config import engine_config
from ringpost.actors.supervisor import Supervisor


def test_another_system_is_a_clear_error(no_leaks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    with pytest.raises(EngineStartError, match=r"Linux 5\.3 or newer only: this system has no pidfd_open"):
        Supervisor(EngineConfig())


@pytest.mark.parametrize("spare", [0, 1, 2, 5, 11, 17, 18, 19, 23, 29])
def test_without_enough_descriptors_nothing_is_left_open(no_leaks: None, spare: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    probe = os.dup(0)
    os.close(probe)
    resource.setrlimit(resource.RLIMIT_NOFILE, (probe + spare, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            Supervisor(EngineConfig())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_mailboxes_larger_than_the_memory_are_refused(no_leaks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their pages come when they are first touched: what is not there then ends the process that touches it."""
    monkeypatch.setattr(topology, "available_memory", lambda: 1000)
    with pytest.raises(EngineStartError, match=r"need \d{10} bytes .*mailbox_bytes=1073741824, but only 1000 bytes are free"):
        Supervisor(engine_config(mailbox_bytes=1 << 30))


@pytest.mark.parametrize("size", [1 << 16, 1 << 21])
def test_the_size_of_mailboxes(no_leaks: None, size: int) -> None:
    mailboxes = topology.Topology(engine_config(mailbox_bytes=size))
    core, _ = mailboxes.boots()
    assert core.plans is not None
    handles = [*(lanes.ordered for lanes in core.requests), *core.outputs, core.plans, *core.results]
    sizes = {handle.name: os.fstat(handle.descriptors()[0]).st_size for handle in handles}
    mailboxes.close()
    assert all(size < bytes_ < size + (1 << 15) for bytes_ in sizes.values()), sizes
