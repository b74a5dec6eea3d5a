"""The one error that finding, converting and checking a model raises."""


class CheckpointError(ValueError):
    """The named model cannot be used; the message names the path or value and what would be right, in one line."""
