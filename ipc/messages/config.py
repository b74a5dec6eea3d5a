"""EngineConfig: every option of the engine, in one frozen value that is passed whole.

It lives with the messages because it crosses processes in the boot record, and because every layer may import this leaf.
Each field has a default, so a test builds any component from `EngineConfig()`.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from .sampling import MAX_SEED

Positive = Annotated[int, Meta(ge=1, le=2**62)]
MIN_MAILBOX, MAX_MAILBOX = 1 << 16, 1 << 30


class SubConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the parts of EngineConfig. The description of a field is its help text on the command line."""


class ModelConfig(SubConfig, frozen=True, kw_only=True):
    """Which model, in which precision and length."""

    model: Annotated[str, Meta(description="alias, local directory, .gguf file or hub id of the model")] = "smollm2"
    tokenizer: Annotated[
        str | None, Meta(description="directory or tokenizer.json to take the tokenizer from (default: the model's)")
    ] = None
    revision: Annotated[str | None, Meta(description="branch, tag or commit of a hub id")] = None
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16"],
        Meta(description="precision of weights, activations and KV cache; auto: the checkpoint's where the CPU is fast at it"),
    ] = "auto"
    max_model_len: Annotated[
        Positive | None, Meta(description="tokens of prompt and answer together (default: the model's own limit)")
    ] = None
    max_logprobs: Annotated[
        int, Meta(ge=-1, le=2**31, description="most logprobs a request may ask for; -1: the whole vocabulary too")
    ] = 20
    generation_config: Annotated[
        str,
        Meta(
            min_length=1,
            description="sampling parameters of requests that name none: auto: the model's generation_config.json; none; or a "
            "directory with such a file",
        ),
    ] = "auto"
    skip_tokenizer_init: Annotated[
        bool, Meta(description="load no tokenizer: prompts are token ids, and answers need detokenize=False")
    ] = False
    logits_processors: Annotated[
        tuple[str, ...],
        Meta(description="import paths of custom logits processors, in this order; a path may be followed by JSON arguments"),
    ] = ()


class CacheConfig(SubConfig, frozen=True, kw_only=True):
    """The paged KV cache."""

    block_size: Annotated[Positive, Meta(description="tokens in a block of the KV cache")] = 16
    kv_cache_memory_bytes: Annotated[
        Positive | None, Meta(description="bytes of KV cache (default: as kv_cache_memory_fraction has it)")
    ] = None
    kv_cache_memory_fraction: Annotated[
        Annotated[float, Meta(gt=0, le=1)] | None,
        Meta(description="share of the free memory for the KV cache (default: a quarter, at most 4 GiB)"),
    ] = None
    num_blocks_override: Annotated[
        Positive | None, Meta(description="blocks of KV cache, whatever the memory allows (for tests)")
    ] = None
    enable_prefix_caching: Annotated[
        bool, Meta(description="keep the KV of finished prompts and answers, for later ones that begin alike")
    ] = True


class SchedulerConfig(SubConfig, frozen=True, kw_only=True):
    """What one step may hold."""

    max_num_seqs: Annotated[Positive, Meta(description="requests that run at once")] = 128
    max_num_batched_tokens: Annotated[
        Positive, Meta(description="tokens computed in one step; running answers wait as long as that takes")
    ] = 256
    long_prefill_token_threshold: Annotated[
        int, Meta(ge=0, le=2**62, description="tokens of one prompt computed in a step that others share; 0: any number")
    ] = 0
    scheduling_policy: Annotated[
        Literal["fcfs", "priority"],
        Meta(description="whose turn it is: who came first, or who has the lowest priority number and then came first"),
    ] = "fcfs"
    stream_interval: Annotated[
        Positive, Meta(description="tokens between two outputs of a request, but for the first and the last")
    ] = 1
    async_scheduling: Annotated[
        bool | None, Meta(description="plan a step while the one before runs; pays where steps are short (default: off)")
    ] = None
    scheduler_cls: Annotated[
        str, Meta(min_length=1, description="import path of the scheduler's class, in an installed package or PYTHONPATH")
    ] = "ringpost.sched.scheduler.Scheduler"


class ParallelConfig(SubConfig, frozen=True, kw_only=True):
    """How many processes of each kind share the work."""

    tensor_parallel_size: Annotated[Literal[1], Meta(description="workers that share each layer (only 1 so far)")] = 1
    data_parallel_size: Annotated[Literal[1], Meta(description="engine cores (only 1 so far)")] = 1
    num_threads: Annotated[
        Positive | None, Meta(description="compute threads of a worker (default: the cores this process may use)")
    ] = None


class QuantizationConfig(SubConfig, frozen=True, kw_only=True):
    """How weights are stored."""

    quantization: Annotated[
        Literal["none", "int8", "int4"],
        Meta(description="bits of a weight of linear layers and the output layer, in groups of 32; quantised at load"),
    ] = "none"
    quantization_ignore: Annotated[
        tuple[str, ...],
        Meta(description="modules that stay as they are: lm_head, or a pattern like *.down_proj of names in the checkpoint"),
    ] = ()


class RuntimeConfig(SubConfig, frozen=True, kw_only=True):
    """Processes and their logs."""

    seed: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_SEED)] | None,
        Meta(description="makes the seeds of requests without one repeatable (default: random)"),
    ] = None
    loop: Annotated[Literal["uvloop", "asyncio"], Meta(description="event loop of the engine's processes")] = "uvloop"
    startup_timeout: Annotated[float, Meta(gt=0, le=1e6, description="seconds a process may take to become ready")] = 600.0
    shutdown_timeout: Annotated[
        float,
        Meta(
            ge=0,
            le=1e6,
            description="seconds that requests may take to finish when the server stops, and then a process to end",
        ),
    ] = 5.0
    hang_timeout: Annotated[
        float,
        Meta(gt=0, le=1e6, description="seconds a process may take for a message before it is hung and is replaced"),
    ] = 300.0
    max_restarts: Annotated[
        int,
        Meta(
            ge=0,
            le=1000,
            description="restarts in a row of a process that finishes no step in between, before the engine gives up; "
            "0: its first death is the engine's, and one that hangs is left alone",
        ),
    ] = 2
    postmortem_dir: Annotated[
        str | None,
        Meta(description="where a process that died leaves what is known of it (default: postmortem in the cache directory)"),
    ] = None
    postmortem_prompts: Annotated[
        bool, Meta(description="leave token ids, stop strings and salts of requests in these files")
    ] = False
    mailbox_bytes: Annotated[
        int,
        Meta(ge=MIN_MAILBOX, le=MAX_MAILBOX, description="bytes of a mailbox that carries requests or steps; a power of two"),
    ] = 1 << 20
    log_level: Annotated[Literal["debug", "info", "warning", "error"], Meta(description="least level that is logged")] = (
        "warning"
    )
    log_stats: Annotated[bool, Meta(description="log a line of throughput and queues every 10 seconds, at level info")] = True
    log_format: Annotated[Literal["text", "json"], Meta(description="form of a log line")] = "text"
    debug_actors: Annotated[
        bool, Meta(description="warn about handlers over 100 ms, full mailboxes, and actors that ask in a circle")
    ] = False
    single_process: Annotated[
        bool, Meta(description="run the engine's actors as tasks of this process: for tests and debugging")
    ] = False

    def __post_init__(self) -> None:
        size = self.mailbox_bytes
        if isinstance(size, int) and size & (size - 1):  # other types are refused where configs are checked
            raise ValueError(
                f"mailbox_bytes must be a power of two of at least {MIN_MAILBOX}, at most {MAX_MAILBOX}, got {size}"
            )


class ApiConfig(SubConfig, frozen=True, kw_only=True):
    """The HTTP server."""

    host: Annotated[str, Meta(description="address to listen on; 0.0.0.0 is every interface")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="port to listen on; 0: any free one")] = 8000
    served_model_name: Annotated[
        tuple[str, ...], Meta(description="names that requests may call the model by (default: as --model has it)")
    ] = ()
    api_key: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(description="key that requests must bear (default: $RINGPOST_API_KEY, which stays out of process lists)"),
    ] = None
    max_num_queued_reqs: Annotated[
        int, Meta(ge=0, le=2**31, description="requests that may wait beyond those that run; more get status 503")
    ] = 1024
    enable_reset_prefix_cache: Annotated[
        bool, Meta(description="answer POST /reset_prefix_cache, by which a client can slow down all others")
    ] = False
    max_connections: Annotated[Positive, Meta(description="connections open at once; more get status 503")] = 2048
    max_body_bytes: Annotated[Positive, Meta(description="bytes of a request's body")] = 8 << 20


class SessionConfig(SubConfig, frozen=True, kw_only=True):
    """Sessions: streaming input."""

    max_sessions: Annotated[Positive, Meta(description="sessions open at once; more are refused")] = 1024
    session_idle_timeout: Annotated[
        float, Meta(gt=0, le=1e9, description="seconds without input and without an answer after which a session ends")
    ] = 600.0
    max_queued_chunks: Annotated[
        Positive, Meta(description="chunks of input that wait in a session; its producer waits when there are more")
    ] = 16


class Checkpoint(SubConfig, frozen=True, kw_only=True):
    """What the edge found out about the model before any process started; no option, so not on the command line."""

    directory: str = ""  # holds config.json and safetensors; empty: not resolved
    tokenizer_directory: str = ""  # holds tokenizer.json
    architecture: str = ""
    hf_config: dict[str, Any] = {}  # config.json as it is
    vocab_size: int = 0
    eos_token_ids: tuple[int, ...] = ()
    max_model_len: int = 0  # effective: the option, else the model's own limit
    default_sampling_params: dict[str, Any] = {}  # of requests that name none, as generation_config.json has them


class EngineConfig(SubConfig, frozen=True, kw_only=True):
    """All options, grouped by the layer that reads them."""

    model: ModelConfig = ModelConfig()
    cache: CacheConfig = CacheConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    parallel: ParallelConfig = ParallelConfig()
    quantization: QuantizationConfig = QuantizationConfig()
    runtime: RuntimeConfig = RuntimeConfig()
    sessions: SessionConfig = SessionConfig()
    api: ApiConfig = ApiConfig()
    checkpoint: Checkpoint = Checkpoint()
