"""Who may attach to a mailbox of any kind, and who is refused."""

from typing import Any

import pytest
from mailboxes import every_kind, make_mailbox, note, receive_all

from ringpost.ipc.attach import attach_receiver, attach_sender
from ringpost.ipc.codec import fingerprint_of
from ringpost.ipc.errors import Broken, SchemaMismatch
from ringpost.ipc.messages.outputs import OutputMessage
from ringpost.ipc.messages.requests import RequestMessage

pytestmark = [pytest.mark.usefixtures("no_leaks"), every_kind]


def test_a_second_writer_and_a_second_reader_are_refused(kind: str) -> None:
    handle = make_mailbox(kind, readers=2)
    ends: list[Any] = [attach_sender(handle.duplicate(), OutputMessage, epoch=3)]
    ends += (attach_receiver(handle.duplicate(), OutputMessage, slot, epoch=4) for slot in (0, 1))
    with pytest.raises(Broken, match=r"mailbox test: its writer is attached already \(epoch 3\)"):
        attach_sender(handle.duplicate(), OutputMessage)
    with pytest.raises(Broken, match=r"mailbox test: its reader 1 is attached already \(epoch 4\)"):
        attach_receiver(handle.duplicate(), OutputMessage, slot=1)
    handle.close()
    for end in ends:
        end.close()


def test_other_messages_are_refused_naming_the_mailbox_and_both_sides(kind: str) -> None:
    handle = make_mailbox(kind)
    made, spoken = fingerprint_of(OutputMessage), fingerprint_of(RequestMessage)
    both = f"mailbox test: made for messages {made:#x}, this side speaks {spoken:#x}"
    with pytest.raises(SchemaMismatch, match=both):
        attach_sender(handle.duplicate(), RequestMessage)
    with pytest.raises(SchemaMismatch, match=both):
        attach_receiver(handle.duplicate(), RequestMessage)
    sender, receiver = attach_sender(handle.duplicate(), OutputMessage), attach_receiver(handle, OutputMessage)
    sender.send_nowait(note(1))  # whoever was refused has not taken a place
    assert receive_all(receiver) == [note(1)]
    sender.close()
    receiver.close()


def test_what_is_sent_before_the_reader_is_there_waits_for_it(kind: str) -> None:
    handle = make_mailbox(kind)
    sender = attach_sender(handle.duplicate(), OutputMessage)
    for number in range(3):
        sender.send_nowait(note(number))
    receiver = attach_receiver(handle, OutputMessage)
    assert receive_all(receiver) == [note(0), note(1), note(2)]
    sender.close()
    receiver.close()


def test_the_ends_outlive_the_handle_they_were_duplicated_from(kind: str) -> None:
    handle = make_mailbox(kind)
    sender, receiver = attach_sender(handle.duplicate(), OutputMessage), attach_receiver(handle.duplicate(), OutputMessage)
    handle.close()
    sender.send_nowait(note(1))
    assert receive_all(receiver) == [note(1)]
    sender.close()
    receiver.close()
