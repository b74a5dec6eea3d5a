"""Request fields that mean something and are not there yet: refused, unless their value asks for nothing.

Any other unknown field is ignored, as clients of OpenAI's API expect.
"""

from typing import Any

import msgspec

from ...ipc.messages.errors import ParameterError
from .validation import fields_of, shown

# Field -> the values that ask for nothing; null is always one.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "stop": ([], ""),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "include_stop_str_in_output": (False,),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "prompt_logprobs": (),
    "structured_outputs": (),
    "response_format": ({"type": "text"},),
    "truncate_prompt_tokens": (),
    "add_special_tokens": (True,),
    "detokenize": (True,),
    "spaces_between_special_tokens": (True,),
    "return_tokens_as_token_ids": (False,),
    "use_beam_search": (False,),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "prompt_embeds": (),
    # /v1/completions
    "echo": (False,),
    "suffix": ("",),
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
}


def check_offered(body: bytes) -> None:
    """Raise ParameterError for a field that asks for what this server cannot do. The body is a valid JSON object.

    Also raises RecursionError.
    """
    given = fields_of(body)
    for field in _NEUTRAL.keys() & given.keys():
        neutral = _NEUTRAL[field]
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
