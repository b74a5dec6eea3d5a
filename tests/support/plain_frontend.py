"""A frontend that knows no text, in the test's own process or, run as a program, in one of its own: `plain_frontend.py JOB`."""

import asyncio
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from ringpost.actors.supervisor import Supervisor
from ringpost.ipc.attach import MailboxHandle, attach_receiver
from ringpost.ipc.lanes import Lanes, LaneSender
from ringpost.ipc.mailbox import Receiver
from ringpost.ipc.messages.outputs import EngineDescription, OutputMessage, StepOutputs, UtilityReply
from ringpost.ipc.messages.requests import FRONTEND_SHIFT, AddRequest, DescribeEngine, RequestMessage


class Job(msgspec.Struct):
    """What the program is told: its mailboxes and what to ask for."""

    requests: Lanes
    outputs: MailboxHandle
    adds: list[AddRequest]


class PlainFrontend:
    """Asks a core, and keeps the tokens it is sent, which must come once and in order."""

    def __init__(self, requests: Lanes, outputs: MailboxHandle, number: int = 0) -> None:
        self._sender: LaneSender[RequestMessage] = LaneSender(requests, RequestMessage)
        self._receiver: Receiver[OutputMessage] = attach_receiver(outputs, OutputMessage)
        self._call = number << FRONTEND_SHIFT
        self._descriptions: list[EngineDescription | None] = []
        self._unfinished: set[int] = set()
        self._tokens: defaultdict[int, list[int]] = defaultdict(list)

    async def _receive_until(self, done: Callable[[], bool]) -> None:
        while not done():
            message = await self._receiver.receive()
            if isinstance(message, UtilityReply):
                self._descriptions.append(message.description)
                continue
            assert isinstance(message, StepOutputs), message
            for delta in message.deltas:
                received = self._tokens[delta.request]
                assert delta.position == len(received), f"request {delta.request}: token {delta.position} of {len(received)}"
                received += delta.tokens
                if delta.finish_reason is not None:
                    self._unfinished.remove(delta.request)

    async def answers(self, adds: Iterable[AddRequest]) -> dict[int, list[int]]:
        """The tokens of each of these requests, which all are sent at once."""
        asked = list(adds)
        for add in asked:
            self._unfinished.add(add.request)
            await self._sender.ordered.send(add)
        await self._receive_until(lambda: not self._unfinished)
        return {add.request: self._tokens.pop(add.request) for add in asked}

    async def describe(self) -> EngineDescription:
        """The core's numbers; tokens that come meanwhile are kept."""
        self._call += 1
        await self._sender.ordered.send(DescribeEngine(self._call))
        await self._receive_until(lambda: bool(self._descriptions))
        description = self._descriptions.pop()
        assert description is not None
        return description

    async def described(self, settled: Callable[[EngineDescription], bool]) -> EngineDescription:
        """The first description that is so; the test's watchdog ends a wait that is in vain."""
        while not settled(description := await self.describe()):
            pass
        return description

    def close(self) -> None:
        """Leave the engine."""
        self._sender.close()
        self._receiver.close()


async def start_frontend(supervisor: Supervisor, number: int, adds: list[AddRequest]) -> asyncio.subprocess.Process:
    """A frontend in a process of its own, which prints its answers as JSON when it has them all."""
    requests, outputs = supervisor.topology.requests[number][0], supervisor.topology.outputs[number][0]
    job = msgspec.json.encode(Job(requests, outputs, adds)).decode()
    fds = [*requests.descriptors(), *outputs.descriptors()]
    program = [sys.executable, "-P", str(Path(__file__)), job]
    return await asyncio.create_subprocess_exec(*program, pass_fds=fds, stdout=asyncio.subprocess.PIPE)


async def answers_of(process: asyncio.subprocess.Process) -> dict[int, list[int]]:
    """What it was answered, once it has ended in good order."""
    assert process.stdout is not None
    answers = msgspec.json.decode(await process.stdout.read(), type=dict[int, list[int]])
    assert await process.wait() == 0
    return answers


async def main(job: Job) -> None:
    """Body of the program. It ends without leaving the engine, which goes on."""
    answers = await PlainFrontend(job.requests, job.outputs).answers(job.adds)
    sys.stdout.write(msgspec.json.encode(answers).decode())


if __name__ == "__main__":
    asyncio.run(main(msgspec.json.decode(sys.argv[1], type=Job)))
