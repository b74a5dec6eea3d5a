"""Typed mailboxes in shared memory: rings over memfd, eventfd doorbells, and the messages that cross them."""
