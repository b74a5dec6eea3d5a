"""LLM over workers without a model: answers in order, checks before anything is sent, Ctrl-C, ends."""

import gc
import threading
from pathlib import Path
from typing import Any

import pytest
from faulty_engines import FaultyEngines, greedy, mixed, prompt_of, seeded
from offline_use import ask, check_outputs, interrupt, pids_of, when_tokens_come
from process_tree import all_end

from ringpost import LLM, EngineConfig, EngineDeadError, EngineStartError, Prompt, RequestOutputKind, SamplingParams

ENDLESS = 2000  # tokens that no test waits for


def test_answers_come_in_the_order_of_the_prompts(engines: FaultyEngines) -> None:
    """The first takes longest, and more are asked than run at once."""
    asked = [(prompt_of(number), seeded(number, 40 - 2 * number)) for number in range(18)]
    with engines.offline(max_num_seqs=4) as llm:
        ask(llm, asked)
        ask(llm, mixed(3, max_tokens=5))
        assert llm.generate([]) == []
        assert llm.llm_engine.stats.finished["length"] == 21


def test_one_prompt_and_one_set_of_parameters_for_all(engines: FaultyEngines) -> None:
    params = greedy(5, output_kind=RequestOutputKind.DELTA)  # which makes no sense here, and changes nothing
    forms: list[Any] = ["abc", {"prompt": "abc"}, ["abc"]]
    with engines.offline() as llm:
        for prompts in forms:
            (output,) = llm.generate(prompts, params)
            assert output.prompt == "abc"
            check_outputs([(output.prompt_token_ids, params)], [output])
        check_outputs([(prompt_of(1), params)], llm.generate(prompt_of(1), params))
        both: list[Prompt] = [prompt_of(1), {"prompt_token_ids": prompt_of(1)}]
        check_outputs([(prompt_of(1), params)] * 2, llm.generate(both, params))
        assert len(llm.generate("abc")[0].outputs[0].token_ids) <= 16


def test_conversations_are_rendered_by_the_models_template(engines: FaultyEngines) -> None:
    with engines.offline() as llm:
        several = llm.chat([[{"role": "user", "content": text}] for text in "ab"], greedy(5))
        (alone,) = llm.chat([{"role": "user", "content": "b"}], greedy(5))
        llm.enqueue_chat([{"role": "user", "content": "b"}], greedy(5))
        (enqueued,) = llm.wait_for_completion()
        decode = llm.get_tokenizer().decode
        assert [decode(output.prompt_token_ids) for output in (*several, alone, enqueued)] == [
            f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n" for text in "abbb"
        ]
        assert alone.outputs == several[1].outputs == enqueued.outputs


WRONG: list[tuple[Any, dict[str, Any], str]] = [
    (["ok", ""], {}, r"prompts\[1\]: prompt must not be empty"),
    (["ok", [1, -1]], {}, r"prompts\[1\]: prompt must hold token ids .* got -1"),
    (["ok", "ok", 5], {}, r"prompts\[2\]: prompt must be text, .* got 5"),
    (5, {}, r"prompts must be a prompt or a list of them, got 5"),
    (
        ["a", "b"],
        {"sampling_params": [SamplingParams()]},
        r"sampling_params must have one entry for each .* 2 .* got 1",
    ),
    (["a", "b"], {"priority": [1, 2, 3]}, r"priority must have one entry for each of the 2 prompts, got 3"),
    (["a", "b"], {"priority": [0, 1]}, r"prompts\[1\]: priority must be 0, got 1"),
    (["a"], {"sampling_params": [{"n": 2}]}, r"sampling_params must be SamplingParams, or a list of them, got \{'n': 2\}"),
    (["a", "b"], {"sampling_params": SamplingParams(stop_token_ids=[5000])}, r"prompts\[0\]: stop_token_ids must"),
    (
        ["a", "b" * 60],
        {"sampling_params": SamplingParams(min_tokens=40, max_tokens=None)},
        r"prompts\[1\]: min_tokens must",
    ),
]


def test_what_is_wrong_is_named_with_its_place_and_nothing_is_sent(engines: FaultyEngines) -> None:
    with engines.offline(max_model_len=80) as llm:
        for prompts, more, error in WRONG:
            with pytest.raises(ValueError, match=error):
                llm.generate(prompts, **more)
        assert (llm.describe().steps, llm.llm_engine.stats.finished["abort"]) == (0, 0)
        ask(llm, mixed(1, max_tokens=3))


def test_a_conversation_that_the_template_refuses_is_named(engines: FaultyEngines) -> None:
    refused = pytest.raises(ValueError, match=r"prompts\[1\]: messages")
    with engines.offline() as llm, refused:
        llm.chat([[{"role": "user", "content": "a"}], [{"role": "user"}]])


@pytest.mark.long
def test_more_than_the_mailbox_holds(engines: FaultyEngines) -> None:
    """Sending waits for the core, which takes no more than it has to; a prompt alone is larger than the mailbox too."""
    asked = [([5 + number % 90] * 3000, seeded(number, 3)) for number in range(40)]
    asked.append(([7] * 70_000, seeded(1, 3)))
    with engines.offline(mailbox_bytes=1 << 16, num_blocks_override=5000) as llm:
        ask(llm, asked)


def test_answers_to_what_was_enqueued(engines: FaultyEngines) -> None:
    asked = mixed(5, max_tokens=20)
    with engines.offline() as llm:
        assert llm.wait_for_completion() == []
        names = llm.enqueue([prompt for prompt, _ in asked[:3]], [params for _, params in asked[:3]])
        ask(llm, mixed(2, max_tokens=50))  # in between
        names += llm.enqueue([prompt for prompt, _ in asked[3:]], [params for _, params in asked[3:]])
        outputs = llm.wait_for_completion()
        check_outputs(asked, outputs)
        assert [output.request_id for output in outputs] == names
        assert llm.wait_for_completion() == []


@pytest.mark.asyncio
async def test_a_running_event_loop_does_not_matter(engines: FaultyEngines) -> None:
    with engines.offline() as llm:
        ask(llm, mixed(3, max_tokens=20))
        assert llm.reset_prefix_cache()


def test_questions_are_answered(engines: FaultyEngines) -> None:
    with engines.offline() as llm:
        blocks = llm.describe().num_blocks
        ask(llm, mixed(2, max_tokens=20))
        assert llm.reset_prefix_cache(reset_running_requests=True) is True
        state = llm.describe()
        assert (state.running, state.waiting, state.free_blocks) == (0, 0, blocks)
        assert llm.get_tokenizer().decode(prompt_of(1)) == bytes(token - 3 for token in prompt_of(1)).decode()
        assert llm.get_default_sampling_params() == SamplingParams()


def test_without_a_tokenizer_there_are_only_ids(engines: FaultyEngines) -> None:
    params = greedy(5, detokenize=False)
    with engines.offline(skip_tokenizer_init=True) as llm:
        (output,) = llm.generate(prompt_of(1), params)
        check_outputs([(prompt_of(1), params)], [output])
        assert output.outputs[0].text == ""
        for prompt, wrong, error in ((prompt_of(1), greedy(5), "detokenize must be False"), ("a", params, "must be token ids")):
            with pytest.raises(ValueError, match=rf"prompts\[0\]: .*{error}"):
                llm.generate(prompt, wrong)


def test_parameters_that_nobody_names_are_the_models(engines: FaultyEngines, tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"max_new_tokens": 7, "temperature": 0, "do_sample": false}')
    with engines.offline(generation_config=str(tmp_path)) as llm:
        assert llm.get_default_sampling_params() == SamplingParams(max_tokens=7, temperature=0)
        assert len(llm.generate(prompt_of(1))[0].outputs[0].token_ids) == 7
        assert len(llm.generate(prompt_of(1), SamplingParams(ignore_eos=True))[0].outputs[0].token_ids) == 16


def test_ctrl_c_ends_the_requests_and_the_engine_can_be_used_on(engines: FaultyEngines) -> None:
    with engines.offline() as llm:
        thread = when_tokens_come(llm, interrupt)
        with pytest.raises(KeyboardInterrupt):
            llm.generate([prompt_of(1), prompt_of(2)], greedy(ENDLESS))
        thread.join()
        assert not llm.llm_engine.has_unfinished_requests()
        assert llm.llm_engine.stats.finished["abort"] == 2
        while llm.describe().running:
            pass
        ask(llm, mixed(4, max_tokens=10))


def test_another_thread_may_shut_it_down(engines: FaultyEngines) -> None:
    with engines.offline() as llm:
        thread = when_tokens_come(llm, llm.shutdown)
        with pytest.raises(EngineDeadError, match="the engine was shut down"):
            llm.generate([prompt_of(1)], greedy(ENDLESS))
        thread.join()
        with pytest.raises(EngineDeadError, match="the engine was shut down"):
            llm.generate("a")
        llm.shutdown()


def test_several_threads_take_turns(engines: FaultyEngines) -> None:
    failures: list[BaseException] = []

    def use(number: int) -> None:
        try:
            ask(llm, [(prompt_of(number), seeded(number, 10))])
        except BaseException as error:
            failures.append(error)
            raise

    with engines.offline() as llm:
        threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []


def test_an_engine_that_nothing_refers_to_ends(engines: FaultyEngines) -> None:
    """At once: nothing in it goes round in a circle, for which a collector would have to come."""
    with engines.offline() as other:
        gc.disable()
        try:
            llm = LLM(config=other.llm_engine.config)
            ask(llm, mixed(1, max_tokens=3))
            with all_end([*pids_of(llm).values()]):
                del llm
        finally:
            gc.enable()
        ask(other, mixed(1, max_tokens=3))


def test_a_model_that_is_not_there_leaves_nothing(no_leaks: None, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not exist"):
        LLM(model=str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="config must be the only argument, got model beside it"):
        LLM("smollm2", config=EngineConfig())


def test_actors_in_one_process_are_refused(no_leaks: None, long_tiny: str) -> None:
    with pytest.raises(ValueError, match="single_process must be False"):
        LLM(long_tiny, single_process=True)


def test_a_start_that_fails_leaves_nothing(no_leaks: None, long_tiny: str) -> None:
    with pytest.raises(EngineStartError, match=r"worker0\.0"):
        LLM(long_tiny, num_blocks_override=10**9)
