"""What the scheduler raises: requests it refuses, and results that do not belong to the step in hand."""


class RequestTooLong(ValueError):
    """The prompt leaves no room for an answer within max_model_len."""

    def __init__(self, *, prompt_tokens: int, max_model_len: int) -> None:
        self.prompt_tokens = prompt_tokens
        self.max_model_len = max_model_len
        super().__init__(
            f"prompt has {prompt_tokens} tokens, but max_model_len is {max_model_len}: "
            f"at most {max_model_len - 1} leave room for an answer"
        )


class DoesNotFit(ValueError):
    """The request could need more KV cache than there is, even with the whole pool to itself."""

    def __init__(self, *, prompt_tokens: int, tokens: int, blocks: int, num_blocks: int, block_size: int) -> None:
        self.prompt_tokens = prompt_tokens
        self.tokens = tokens  # prompt and answer together, at worst
        self.blocks = blocks  # needed for them
        self.num_blocks = num_blocks  # in the pool
        self.block_size = block_size
        super().__init__(
            f"prompt of {prompt_tokens} tokens and max_tokens make up to {tokens} tokens, which need {blocks} blocks "
            f"of {block_size}, but the KV cache holds {num_blocks}: prompt + max_tokens can be at most "
            f"{num_blocks * block_size + 1} (or raise kv_cache_memory_bytes)"
        )


class DuplicateRequest(ValueError):
    """A request with this number is already waiting or running."""

    def __init__(self, request: int, external_id: str) -> None:
        self.request = request
        super().__init__(f"request {request} ({external_id!r}) was added twice: it is still waiting or running")


class ResultMismatch(RuntimeError):
    """A result is not that of the oldest step in flight: worker and scheduler disagree, so neither can go on."""


class SessionMismatch(RuntimeError):
    """What is said of a session does not agree with what is known of it. Always a bug of this package; nothing has changed."""
