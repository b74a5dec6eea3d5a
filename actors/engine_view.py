"""What actors and mailboxes do: two looks at the engines, compared."""

import re

import msgspec

from ..ipc.ring_view import RingReading, SideReading
from .engine_look import ActorReading, Look


class ActorView(msgspec.Struct, frozen=True, kw_only=True):
    """An actor. Ages in seconds; None is what is not known, or makes no sense for it."""

    name: str
    kind: str
    pid: int
    alive: bool  # its process runs
    state: str  # what it said last
    epoch: int
    steps: int
    steps_per_second: float | None
    last_step_age: float | None
    message: str  # in hand; empty when idle
    message_age: float | None
    asks: str  # whose answer it waits for; empty when nobody's
    running: int | None
    waiting: int | None
    used_blocks: int | None
    num_blocks: int | None
    preemptions: int | None  # since the core started
    prefix_hit_rate: float | None  # of the prompt tokens looked up since then, the share found in the prefix cache, 0 to 1
    cpu_percent: float | None  # of its process; 100 is one core
    rss_bytes: int | None  # of its process


class SideView(msgspec.Struct, frozen=True, kw_only=True):
    """One side of a mailbox. Counts are since the mailbox was made."""

    state: str
    epoch: int
    parked: bool
    messages: int
    waits: int
    wait_share: float | None  # of the time between the looks, 0 to 1: a writer's is back-pressure, a reader's idleness
    lost_wakeups: int


class MailboxView(msgspec.Struct, frozen=True, kw_only=True):
    """A mailbox."""

    name: str
    depth: int  # messages that some reader has still to receive
    used_bytes: int
    capacity_bytes: int
    messages_per_second: float | None
    bytes_per_second: float | None
    writer: SideView
    readers: list[SideView]


class EngineView(msgspec.Struct, frozen=True, kw_only=True):
    """An engine; engines of one program are shown as one."""

    supervisor: int | None  # pid
    pids: list[int]
    actors: list[ActorView]
    mailboxes: list[MailboxView]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What two looks tell."""

    seconds: float  # between them
    engines: list[EngineView]


def compare(before: Look, after: Look) -> Report:
    """The state of the second look, with rates since the first. What the first did not see has no rates yet."""
    seconds = after.time - before.time
    actors = {identity: actor for engine in before.engines for identity, actor in engine.actors.items()}
    rings = {identity: ring for engine in before.engines for identity, (_, ring) in engine.mailboxes.items()}
    engines = [
        EngineView(
            supervisor=next((actor.status.supervisor for actor in engine.actors.values()), None),
            pids=sorted(engine.pids),
            actors=sorted(
                (_actor(actors.get(identity), actor, after.time, seconds) for identity, actor in engine.actors.items()),
                key=lambda actor: _natural(actor.name),
            ),
            mailboxes=sorted(
                (_mailbox(name, rings.get(identity), ring, seconds) for identity, (name, ring) in engine.mailboxes.items()),
                key=lambda mailbox: _natural(mailbox.name),
            ),
        )
        for engine in after.engines
    ]
    return Report(seconds=round(seconds, 3), engines=engines)


def _natural(name: str) -> list[tuple[int, str]]:
    """An order in which worker0.10 comes after worker0.9."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", name)]


def _rate(before: float | None, after: float, seconds: float) -> float | None:
    """Growth a second; None where there was nothing before, or a counter began anew."""
    if before is None or after < before or seconds <= 0:
        return None
    return round((after - before) / seconds, 3)


def _actor(before: ActorReading | None, after: ActorReading, now: float, seconds: float) -> ActorView:
    status, usage, load = after.status, after.usage, after.status.load
    known = before if before is not None and before.status.pid == status.pid else None
    cpu = _rate(known.usage.cpu_seconds, usage.cpu_seconds, seconds) if known and known.usage and usage else None
    return ActorView(
        name=status.actor,
        kind=status.kind,
        pid=status.pid,
        alive=usage is not None,
        state=status.state,
        epoch=status.epoch,
        steps=status.steps,
        steps_per_second=_rate(known.status.steps if known else None, status.steps, seconds),
        last_step_age=_age(status.progress, now) if status.steps else None,
        message=status.message,
        message_age=_age(status.since, now) if status.message else None,
        asks=status.asks,
        running=load.running if load else None,
        waiting=load.waiting if load else None,
        used_blocks=load.used_blocks if load else None,
        num_blocks=load.num_blocks if load else None,
        preemptions=load.preemptions if load else None,
        prefix_hit_rate=round(load.prefix_hits / load.prefix_queries, 3) if load and load.prefix_queries > 0 else None,
        cpu_percent=None if cpu is None else round(cpu * 100, 1),
        rss_bytes=usage.rss_bytes if usage else None,
    )


def _age(moment: float, now: float) -> float:
    """Seconds since then; what was posted after the look began is no older than 0."""
    return round(max(0.0, now - moment), 3)


def _mailbox(name: str, before: RingReading | None, after: RingReading, seconds: float) -> MailboxView:
    writer = after.writer
    reading = [reader for reader in after.readers if reader.state != "gone"] or after.readers
    sides = dict(enumerate(before.readers)) if before else {}
    return MailboxView(
        name=name,
        depth=max(_depth(writer, reader) for reader in reading) if reading else 0,
        used_bytes=min(max(0, after.used), after.capacity),
        capacity_bytes=after.capacity,
        messages_per_second=_rate(before.writer.messages if before else None, writer.messages, seconds),
        bytes_per_second=_rate(before.writer.position if before else None, writer.position, seconds),
        writer=_side(before.writer if before else None, writer, seconds),
        readers=[_side(sides.get(slot), reader, seconds) for slot, reader in enumerate(after.readers)],
    )


def _depth(writer: SideReading, reader: SideReading) -> int:
    """Messages sent and not received. A reader that joined late never counted the first ones, so the position decides."""
    return 0 if reader.position == writer.position else max(0, writer.messages - reader.messages)


def _side(before: SideReading | None, after: SideReading, seconds: float) -> SideView:
    return SideView(
        state=after.state,
        epoch=after.epoch,
        parked=after.parked,
        messages=after.messages,
        waits=after.waits,
        wait_share=_wait_share(before, after, seconds),
        lost_wakeups=after.lost_wakeups,
    )


def _wait_share(before: SideReading | None, after: SideReading, seconds: float) -> float | None:
    """The part of the time that it waited. Waits are counted when they end: one that spans both looks shows as parked."""
    if before is None or seconds <= 0:
        return None
    counted = _rate(before.wait_seconds, after.wait_seconds, seconds)
    if counted == 0 and before.parked and after.parked:
        return 1.0
    return None if counted is None else min(1.0, counted)
