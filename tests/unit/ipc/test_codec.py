"""Encoding: what belongs to a mailbox, equal fingerprints in every process, and defaults that nobody shares."""

import json
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from ringpost.ipc.codec import Codec, fingerprint_of
from ringpost.ipc.messages.control import ActorReady, FromActor, Stop, ToActor
from ringpost.ipc.messages.outputs import OutputMessage, StepOutputs, TokenDelta, UtilityReply
from ringpost.ipc.messages.plans import PlanMessage
from ringpost.ipc.messages.requests import AddRequest, RequestMessage
from ringpost.ipc.messages.results import ResultMessage, StepResult
from ringpost.ipc.messages.sampling import SamplingParams

UNIONS: dict[str, Any] = {
    "control.ToActor": ToActor,
    "control.FromActor": FromActor,
    "outputs.OutputMessage": OutputMessage,
    "plans.PlanMessage": PlanMessage,
    "requests.RequestMessage": RequestMessage,
    "results.ResultMessage": ResultMessage,
}
PROGRAM = """
import importlib, json, sys
from ringpost.ipc.codec import Codec, fingerprint_of
def union(name):
    module, _, attribute = name.partition(".")
    return getattr(importlib.import_module("ringpost.ipc.messages." + module), attribute)
print(json.dumps({name: Codec(union(name)).fingerprint for name in sys.argv[1:]}))
"""


def test_fingerprints_are_the_same_in_every_process() -> None:
    here = {name: fingerprint_of(union) for name, union in UNIONS.items()}
    for seed in ("1", "2"):
        command = [sys.executable, "-P", "-c", PROGRAM, *UNIONS]
        output = subprocess.run(command, capture_output=True, check=True, text=True, env={"PYTHONHASHSEED": seed}).stdout
        assert json.loads(output) == here
    assert len(set(here.values())) == len(UNIONS)


def test_a_fingerprint_is_made_once() -> None:
    assert fingerprint_of(OutputMessage) == fingerprint_of(OutputMessage)


@pytest.mark.parametrize("message", [Stop(), 5, None, "text", TokenDelta(1, 0, [])])
def test_a_message_of_another_mailbox_is_refused(message: Any) -> None:
    name = type(message).__name__
    with pytest.raises(
        TypeError, match=f"{name} does not belong to this mailbox; it carries Failure, StepOutputs, UtilityReply"
    ):
        Codec(OutputMessage).encode(message)


def test_a_mailbox_of_one_message() -> None:
    codec: Codec[Stop] = Codec(Stop)
    assert codec.decode(codec.encode(Stop())) == Stop()


def test_messages_come_back_equal() -> None:
    params = SamplingParams(temperature=0.5, seed=2**63 - 1, max_tokens=3, stop_token_ids=(7, 8), output_kind="delta")  # type: ignore[arg-type]
    add = AddRequest(2**48 + 1, "é 🙂", [0, 49151], params, 12.5, (2,), -3)
    requests: Codec[RequestMessage] = Codec(RequestMessage)
    assert requests.decode(requests.encode(add)) == add
    outputs = StepOutputs(5, [TokenDelta(1, 3, [9], "stop", 9, 4, 1.5)])
    codec: Codec[OutputMessage] = Codec(OutputMessage)
    assert codec.decode(codec.encode(outputs)) == outputs


def test_defaults_are_not_shared() -> None:
    for make, field in (
        (lambda: TokenDelta(1, 0, []), "logprobs"),
        (lambda: StepResult(1, []), "failures"),
        (lambda: AddRequest(1, "", [1], SamplingParams(), 0.0), "output"),
        (lambda: ActorReady("core0"), "seconds"),
    ):
        first, second = getattr(make(), field), getattr(make(), field)
        assert first == second
        assert first is not second, field


def test_messages_are_frozen() -> None:
    with pytest.raises(AttributeError):
        UtilityReply(1).call = 2  # type: ignore[misc]


def test_a_message_from_a_newer_side_keeps_what_is_known() -> None:
    newer = msgspec.msgpack.encode(["UtilityReply", 3, True, "", None, "a field appended later"])
    assert Codec(OutputMessage).decode(newer) == UtilityReply(3)
