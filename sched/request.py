"""Request: what the scheduler knows about one request."""

from enum import Enum

from ..ipc.messages.requests import AddRequest
from ..ipc.messages.sampling import SamplingParams
from .stop_rules import StopRules


class RequestState(Enum):
    """Where a request is in its life."""

    WAITING = "waiting"  # for a row; holds blocks and their reservation only where it kept them when it lost its row
    RUNNING = "running"  # holds a row, blocks and a reservation
    PARKED = "parked"  # as waiting, but its turn does not come
    FINISHED = "finished"  # holds nothing; a step in flight may still name it


class Request:
    """State of one request. There is no prefill or decode phase: `num_computed` catches up with `num_schedulable`."""

    __slots__ = (
        "block_table",
        "max_positions",
        "num_computed",
        "num_in_flight",
        "num_reserved_blocks",
        "num_schedulable",
        "num_slots",
        "output",
        "params",
        "prompt",
        "request_id",
        "row",
        "state",
        "stop_rules",
    )

    request_id: int
    prompt: list[int]
    output: list[int]  # tokens known so far, those delivered before a restart included
    params: SamplingParams
    stop_rules: StopRules
    state: RequestState
    row: int  # set only while running
    num_computed: int  # positions whose KV is computed, or will be by a planned step
    num_schedulable: int  # positions whose token is known, or will be sampled by a planned step
    num_in_flight: int  # tokens that planned steps sample and whose result is still to come
    max_positions: int  # positions whose KV can ever be needed
    block_table: list[int]  # block ids in order of position
    num_slots: int  # positions that the block table covers
    num_reserved_blocks: int  # promised, those of the table included

    def __init__(self, request: AddRequest, max_model_len: int) -> None:
        self.request_id = request.request
        self.prompt = request.prompt
        self.output = list(request.output)
        self.params = request.params
        self.stop_rules = StopRules(request, max_model_len)
        self.state = RequestState.WAITING
        self.num_computed = 0
        self.num_in_flight = 0
        self.num_schedulable = len(request.prompt) + len(request.output)
        # The last token ends the request, so nothing is ever computed from it.
        self.max_positions = len(request.prompt) + self.stop_rules.max_output - 1
        self.block_table = []
        self.num_slots = 0
        self.num_reserved_blocks = 0
