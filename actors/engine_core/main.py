"""Body of the engine core process."""

import time

from ...ipc.attach import attach_sender
from ...ipc.lanes import LaneReceiver
from ...ipc.messages.control import ActorReady
from ...ipc.messages.outputs import OutputMessage
from ...ipc.messages.requests import RequestMessage
from ...sched.interface import scheduler_class
from ..boot import Boot, Control, freeze_memory
from ..debug import watch_handlers, watched
from .actor import EngineCore
from .executor import MailboxExecutor
from .output_port import OutputPort
from .request_port import RequestPort


async def main(boot: Boot, control: Control) -> None:
    """Attach to the mailboxes, wait for the workers, then serve."""
    started = time.monotonic()
    config = boot.config
    assert boot.plans is not None
    debug = config.runtime.debug_actors
    executor = MailboxExecutor(boot.plans, boot.results, boot.epoch, debug=debug)
    requests = [RequestPort(LaneReceiver(lanes, RequestMessage, boot.epoch), boot.epoch) for lanes in boot.requests]
    senders = [attach_sender(handle, OutputMessage, boot.epoch, checked=debug) for handle in boot.outputs]
    outputs = [OutputPort(watched(sender, on=debug)) for sender in senders]
    num_blocks = await executor.start()
    scheduler = scheduler_class(config.scheduler.scheduler_cls)(
        config.scheduler,
        config.cache,
        num_blocks=num_blocks,
        max_model_len=config.checkpoint.max_model_len,
        steps_in_flight=2 if config.scheduler.async_scheduling else 1,
    )

    def tell_begun(epoch: int) -> None:
        control.sender.send_nowait(ActorReady(boot.actor, num_blocks, epoch=epoch))

    core = EngineCore(
        boot.actor, scheduler, executor, requests, outputs, control.receiver, control.status, boot.core, tell_begun
    )
    if debug:
        watch_handlers(core, boot.actor)
    freeze_memory(config.runtime)
    phases = control.phases | {"wait for workers": time.monotonic() - started}
    control.status.state("ready")
    control.sender.send_nowait(ActorReady(boot.actor, num_blocks, phases, boot.epoch))
    await core.run()
