"""What a session's context has to be before a response, and how it comes to be so."""

from collections.abc import Sequence

from ...ipc.messages.errors import ParameterError
from ...ipc.messages.sampling import SamplingParams
from ..frontend.engine_client import EngineClient
from ..frontend.session import Session
from .realtime_conversation import Conversation
from .realtime_settings import CONVERSATION, SessionFields

_BEFORE = 8  # tokens that can have a say in the text of what follows


async def wanted_tokens(engine: EngineClient, conversation: Conversation, settings: SessionFields) -> list[int]:
    """The tokens that a response is to go on from. Raises ParameterError."""
    if not conversation.items and not settings.instructions:
        message = "the conversation has no items: create one, or commit input_text_buffer first"
        raise ParameterError(message, CONVERSATION)
    if settings.mode != "text":
        rendered = await engine.chat_prompt(conversation.messages(settings.instructions))
        return rendered["prompt_token_ids"]
    wanted: list[int] = []
    for item in conversation.items:
        if item.token_ids is None:
            text = "".join(item.texts)
            item.token_ids = await engine.token_ids(text, add_special_tokens=item is conversation.items[0])
        wanted += item.token_ids
    if not wanted:
        raise ParameterError("conversation must hold text for a response to go on from, got none", CONVERSATION)
    return wanted


class Context:
    """A session's context, which keeps what was computed. Only what it lacks is sent, whatever became of the conversation."""

    def __init__(self, engine: EngineClient, session: Session) -> None:
        self._engine = engine
        self._session = session
        self._before: list[int] = []  # the last tokens before the last answer

    async def answer(self, wanted: list[int], params: SamplingParams) -> None:
        """Have `wanted` answered. Nothing may be under way. Raises ValueError for a prompt or parameters that cannot be."""
        kept = min(_shared(self._session.context, wanted), len(wanted) - 1)  # a chunk is at least one token
        self._session.rewind(kept)
        await self._session.append({"prompt_token_ids": wanted[kept:]}, params)
        self._before = wanted[-_BEFORE:]

    async def own_tokens(self, text: str, told: list[int]) -> list[int] | None:
        """The tokens, of those told, by which the last answer says this text; None where it ends or is cut within a token."""
        texts = (await self._engine.token_texts([*self._before, *told]))[len(self._before) :]
        count = length = 0
        while length < len(text) and count < len(told):
            length += len(texts[count])
            count += 1
        return told[:count] if "".join(texts[:count]) == text else None


def _shared(context: Sequence[int], wanted: Sequence[int]) -> int:
    """Tokens that both begin with."""
    length = min(len(context), len(wanted))
    if context[:length] == wanted[:length]:
        return length
    return next(index for index in range(length) if context[index] != wanted[index])
