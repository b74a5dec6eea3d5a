"""The only place where ends of mailboxes are made, whatever lies between them."""

from typing import Any, TypeAlias

from .local_mailbox import LocalHandle, LocalReceiver, LocalSender
from .mailbox import Receiver, Sender
from .ring import RingHandle
from .shared_mailbox import SharedReceiver, SharedSender

MailboxHandle: TypeAlias = RingHandle | LocalHandle


def attach_sender(handle: MailboxHandle, union: Any, epoch: int = 1, *, checked: bool = False) -> Sender[Any]:
    """The sending end for the messages of a union. It owns the handle, also when this raises.

    Raises Broken when one is attached already, SchemaMismatch when the mailbox was made for other messages.
    With `checked`, records carry checksums.
    """
    if isinstance(handle, LocalHandle):
        return LocalSender(handle, union, epoch)
    return SharedSender(handle, union, epoch, checked=checked)


def attach_receiver(handle: MailboxHandle, union: Any, slot: int = 0, epoch: int = 1) -> Receiver[Any]:
    """The receiving end in one slot. It owns the handle, also when this raises. Raises as `attach_sender`."""
    if isinstance(handle, LocalHandle):
        return LocalReceiver(handle, union, slot, epoch)
    return SharedReceiver(handle, union, slot, epoch)
