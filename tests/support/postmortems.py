"""A post-mortem with something in every part."""

from msgspec.structs import replace

from ringpost.actors.postmortem_file import FORMAT, MailboxPart, MessagePart, Postmortem
from ringpost.ipc.ring_view import SideReading

SIDE = SideReading("attached", 1, False, 96, 2, 0, 0.0, 0)
PLANS = MailboxPart(
    name="plans[0]",
    direction="in",
    capacity=4096,
    unread=1,
    writer=replace(SIDE, parked=True),
    readers=[replace(SIDE, state="gone", messages=1)],
    messages=[
        MessagePart(type="", unread=False, epoch=1, sequence=0, size=77, problem="it does not decode"),
        MessagePart(
            type="StepPlan",
            unread=True,
            epoch=1,
            sequence=1,
            size=50,
            fields={"step": 7, "new": [{"row": 0, "tokens": "<37 token ids>"}], "rows": list(range(30)), "late_mask": False},
        ),
    ],
)
POSTMORTEM = Postmortem(
    format=FORMAT,
    time="2026-11-30T10:25:30+00:00",
    clock=100.0,
    ringpost="0.1.0",
    actor="worker0.0",
    kind="worker",
    pid=4711,
    epoch=2,
    failure={"kind": "MemoryError", "message": "no room", "traceback": "Traceback:\n\tat one\nMemoryError: no room"},
    status={"actor": "worker0.0", "state": "ready", "steps": 0, "since": 99.5, "progress": 0.0, "message": "StepPlan 7"},
    tail=["loading \x1b[2J\x07", "[red]loaded[/red]"],
    prompts=False,
    mailboxes=[PLANS],
)
