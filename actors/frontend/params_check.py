"""ParamsCheck: sampling parameters against what they do not know themselves: vocabulary, limits, custom processors."""

from collections import OrderedDict
from collections.abc import Iterable

from ...ipc.blocking import in_thread
from ...ipc.messages.config import EngineConfig
from ...ipc.messages.errors import ParameterError
from ...ipc.messages.outputs import columns_that_fit
from ...ipc.messages.sampling import SamplingParams
from ...ipc.messages.sampling_checks import token_sequences
from ...model_runner.processor_loading import load_processors, validate_params
from .renderer import Renderer

_INLINE_CHARACTERS = 4096  # of bad words; more are tokenised in a thread


_REMEMBERED = 16


class _Recent:
    """What became of the parameters seen last, by object: they never change."""

    def __init__(self) -> None:
        self._entries: OrderedDict[int, tuple[SamplingParams, SamplingParams]] = OrderedDict()

    def get(self, params: SamplingParams) -> SamplingParams | None:
        """What was put for this very object."""
        entry = self._entries.get(id(params))
        return None if entry is None else entry[1]

    def put(self, params: SamplingParams, result: SamplingParams) -> None:
        """Remember it, and with it the object, lest another one gets its id."""
        self._entries[id(params)] = params, result
        if len(self._entries) > _REMEMBERED:
            self._entries.popitem(last=False)


class ParamsCheck:
    """Looks at parameters once, however many prompts of a call share the object."""

    def __init__(self, config: EngineConfig, renderer: Renderer) -> None:
        self._renderer = renderer
        self._vocab_size = config.checkpoint.vocab_size
        self._eos_token_ids = config.checkpoint.eos_token_ids
        self._max_logprobs = config.model.max_logprobs
        self._mailbox_bytes = config.runtime.mailbox_bytes
        self._processors = load_processors(config.model.logits_processors)
        self._checked, self._settled = _Recent(), _Recent()

    def check(self, params: SamplingParams) -> None:
        """Raise ParameterError for what is wrong with them."""
        if self._checked.get(params) is not None:
            return
        if not isinstance(params, SamplingParams):
            raise ParameterError(f"sampling_params must be a SamplingParams, got {params!r}", "sampling_params")
        for field in ("stop_token_ids", "logit_bias", "allowed_token_ids"):
            self._check_ids(field, getattr(params, field) or ())
        for tokens in params.bad_words_token_ids:
            self._check_ids("bad_words_token_ids", tokens)
        for field in ("logprobs", "prompt_logprobs"):
            self._check_logprobs(field, getattr(params, field))
        self._ask_processors(params)
        self._checked.put(params, params)

    def settle(self, params: SamplingParams) -> SamplingParams:
        """Those of one answer, with the bad words as tokens. Raises ParameterError where no token is left to begin with."""
        if (known := self._settled.get(params)) is not None:
            return known
        banned = params.bad_words_token_ids
        if params.bad_words:
            banned = tuple(dict.fromkeys([*banned, *self._renderer.bad_word_ids(params.bad_words)]))
            token_sequences("bad_words", banned)  # how many and how long they are as tokens, nobody knew before
        self._check_allowed(params, {ids[0] for ids in banned if len(ids) == 1})
        settled = params.derive(n=1, bad_words=(), bad_words_token_ids=banned)
        self._settled.put(params, settled)
        return settled

    async def settle_soon(self, params: SamplingParams) -> None:
        """Do what `settle` does where it holds nobody up; that then has nothing left to do."""
        if sum(map(len, params.bad_words)) > _INLINE_CHARACTERS:
            await in_thread(self.settle, params)

    def _check_ids(self, field: str, tokens: Iterable[int]) -> None:
        wrong = next((token for token in tokens if token >= self._vocab_size), None)
        if wrong is not None:
            raise ParameterError(f"{field} must hold token ids from 0 to {self._vocab_size - 1}, got {wrong}", field)

    def _check_logprobs(self, field: str, count: int | None) -> None:
        if count is None:
            return
        most = self._max_logprobs
        if most != -1 and not 0 <= count <= most:
            message = f"{field} must be at most {most}, which this engine's --max-logprobs allows, got {count}"
            raise ParameterError(message, field)
        columns = self._vocab_size * 4 if count == -1 else min(count, self._vocab_size) * 8
        if columns > columns_that_fit(self._mailbox_bytes):
            message = f"{field} must be fewer, got {count}: they are {columns} bytes a token, too many for --mailbox-bytes"
            raise ParameterError(f"{message} {self._mailbox_bytes}", field)

    def _ask_processors(self, params: SamplingParams) -> None:
        """Let custom logits processors look at the parameters; whatever one raises is about this request alone."""
        try:
            validate_params(self._processors, params)
        except ParameterError:
            raise
        except Exception as error:
            raise ParameterError(f"extra_args must suit the logits processors: {error}", "extra_args") from error

    def _check_allowed(self, params: SamplingParams, banned: set[int]) -> None:
        """Whether there is a token to begin with."""
        if params.allowed_token_ids is None:
            return
        if params.min_tokens:
            banned = banned.union(params.stop_token_ids, () if params.ignore_eos else self._eos_token_ids)
        if banned.issuperset(params.allowed_token_ids):
            rule = "allowed_token_ids must hold a token that neither bad_words nor min_tokens rule out"
            raise ParameterError(f"{rule}, got {list(params.allowed_token_ids)!r:.100}", "allowed_token_ids")
