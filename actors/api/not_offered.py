"""Request fields that would change the reply and are not there yet: refused, unless their value asks for nothing.

Any other unknown field is ignored, as clients of OpenAI's API expect; so is one that changes only who pays, what is kept or how
fast it is.
"""

from collections.abc import Collection
from typing import Any

import msgspec

from ...ipc.messages.errors import ParameterError
from .validation import fields_of, shown

# Field -> the values that ask for nothing; null is always one.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "echo": (False,),  # of a conversation
    "top_logprobs": (0,),  # of a completion, whose logprobs are a number
    "structured_outputs": (),
    "response_format": ({"type": "text"},),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "prompt_embeds": (),
    "suffix": ("",),
    "structural_tag": (),
    "logprob_token_ids": (),
    "prompt_logprob_token_ids": (),
    "prompt_logprob_start": (0,),
    "watermarking": (False,),
    "thinking_token_budget": (-1,),
    "kv_transfer_params": ({},),
    "ec_transfer_params": ({},),
    "return_token_offsets": (False,),
    "routed_experts_prompt_start": (0,),
    # /v1/chat/completions
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "documents": ([],),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "moderation": (),
    "reasoning_effort": (),
    "include_reasoning": (True,),
    "verbosity": ("medium",),
    "media_io_kwargs": ({},),
    "mm_processor_kwargs": ({},),
    "return_prompt_text": (False,),
}
_OF_COMPLETIONS: dict[str, tuple[Any, ...]] = {"add_special_tokens": (True,)}
_OF_CHATS: dict[str, tuple[Any, ...]] = {"add_special_tokens": (False,)}  # the template writes them


def check_offered(body: bytes, offered: Collection[str]) -> None:
    """Raise ParameterError for a field that asks for what this server cannot do. The body is a valid JSON object, and the
    route knows the fields `offered`.

    Also raises RecursionError.
    """
    given = fields_of(body)
    values = _NEUTRAL | (_OF_CHATS if "messages" in offered else _OF_COMPLETIONS)
    for field in values.keys() & given.keys() - set(offered):
        neutral = values[field]
        if not _asks_for_nothing(given[field], neutral):
            rest = f"it may only be {msgspec.json.encode(neutral[0]).decode()}" if neutral else "leave it out"
            raise ParameterError(f"{field} is not supported yet: {rest}, got {shown(given[field])}", field)


def _asks_for_nothing(value: msgspec.Raw, neutral: tuple[Any, ...]) -> bool:
    try:
        decoded = msgspec.json.decode(value)
    except msgspec.ValidationError:  # a number beyond all bounds
        return False
    return decoded is None or any(_same(decoded, known) for known in neutral)


def _same(value: Any, known: Any) -> bool:
    """Equality of JSON values: Python's False is 0, JSON's is not."""
    return bool(value == known) and isinstance(value, bool) is isinstance(known, bool)
