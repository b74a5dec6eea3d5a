"""What the supervisor says where it cannot work."""

import os

import pytest

from ringpost import EngineConfig, EngineStartError
from ringpost.actors.supervisor import Supervisor


def test_another_system_is_a_clear_error(no_leaks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    with pytest.raises(EngineStartError, match=r"Linux 5\.3 or newer only: this system has no pidfd_open"):
        Supervisor(EngineConfig())
