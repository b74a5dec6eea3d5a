"""Requests of an OutputProcessor whose core and consumer are the test. The tokens are the tiny model's."""

from functools import partial
from typing import Any

from tiny_checkpoint import tiny_tokenizer

from ringpost.actors.frontend.collector import RequestOutputCollector
from ringpost.actors.frontend.detokenizer import Vocabulary, Words
from ringpost.actors.frontend.live_request import LiveRequest
from ringpost.actors.frontend.output_processor import OutputProcessor
from ringpost.ipc.messages.sampling import SamplingParams

VOCABULARY = Vocabulary(tiny_tokenizer(), byte_level=True)


def register(
    outputs: OutputProcessor, number: int, params: SamplingParams, content: Any = "hi", external_id: str = "r"
) -> tuple[LiveRequest, RequestOutputCollector]:
    """A request whose answers have the numbers from `number` on."""
    words = Words(partial(VOCABULARY.detokenizer, skip_special_tokens=params.skip_special_tokens), VOCABULARY.bytes_of)
    live = LiveRequest(external_id, range(number, number + params.n), params, words, content)
    collector = RequestOutputCollector(live, on_abandon=lambda: None)
    outputs.add(live, collector)
    return live, collector
