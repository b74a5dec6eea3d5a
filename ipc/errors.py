"""What can go wrong at a mailbox, by situation."""


class MailboxError(Exception):
    """Root of the errors of this package."""


class WouldBlock(MailboxError):
    """A `_nowait` call could not finish at once: nothing to receive, or no room to send. Harmless; try later."""


class Closed(MailboxError):
    """This end was closed by its own side and is used again: a fault of the caller."""


class EndOfStream(MailboxError):
    """The writer closed its end in good order, and everything it had published has been received."""


class Broken(MailboxError):
    """The peer is gone without closing, or a record is corrupt. Nothing more will come from this attachment."""


class PeerGone(Broken):
    """Broken, because nobody is at the other end any more: the writer died, or the last reader died or left."""


class SchemaMismatch(MailboxError):
    """The two sides were built with different messages, or the memory is not a ring of this version."""


class MessageTooLarge(MailboxError):
    """The encoded message exceeds `MAX_MESSAGE` bytes. Nothing was sent."""
