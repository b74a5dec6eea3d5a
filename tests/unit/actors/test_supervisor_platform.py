"""What the supervisor says where it cannot work."""

import os
import resource

import pytest

from ringpost import EngineConfig, EngineStartError
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
