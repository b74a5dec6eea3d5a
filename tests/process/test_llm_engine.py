"""LLMEngine over workers without a model: requests one by one, step by step."""

import pytest
from fault_script import ALWAYS, Fault
from faulty_engines import FaultyEngines, greedy, prompt_of, seeded
from offline_use import interrupt, when_tokens_come
from scripted_worker import tokens_of

from ringpost import AsyncLLM, AsyncLLMEngine, EngineGenerateError, LLMEngine, RequestOutput, RequestOutputKind

DEADLY = 130  # a token


def step_to_the_end(engine: LLMEngine) -> dict[str, list[RequestOutput]]:
    """All outputs until no request is unfinished, by request."""
    outputs: dict[str, list[RequestOutput]] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            outputs.setdefault(output.request_id, []).append(output)
    return outputs


def test_outputs_of_each_kind_make_up_the_answer(engines: FaultyEngines) -> None:
    """Of requests that are added while others run."""
    with engines.offline() as llm:
        engine = llm.llm_engine
        assert engine.step() == []
        for kind in RequestOutputKind:
            assert engine.add_request(kind.value, prompt_of(1), greedy(30, output_kind=kind)) == kind.value
            engine.step()
        assert engine.get_num_unfinished_requests() == len(RequestOutputKind)
        outputs = step_to_the_end(engine)
        expected = tokens_of(prompt_of(1), greedy(30))
        for name, several in outputs.items():
            assert [output.finished for output in several] == [False] * (len(several) - 1) + [True]
            assert several[-1].outputs[0].finish_reason == "length"
            if name != "delta":
                assert several[-1].outputs[0].token_ids == expected
        assert len(outputs["final_only"]) == 1
        deltas = [token for output in outputs["delta"] for token in output.outputs[0].token_ids]
        assert expected[-len(deltas) :] == deltas  # the first ones came while others were added
        assert engine.step() == []


def test_a_request_may_be_aborted(engines: FaultyEngines) -> None:
    with engines.offline() as llm:
        engine = llm.llm_engine
        for name in "abc":
            engine.add_request(name, prompt_of(1), greedy(40))
        with pytest.raises(ValueError, match="request_id must not be that of an unfinished request, got 'a'"):
            engine.add_request("a", prompt_of(1))
        engine.step()
        engine.abort_request(["a", "b", "nobody"])
        engine.abort_request("a")
        assert engine.get_num_unfinished_requests() == 1
        outputs = step_to_the_end(engine)
        assert outputs.keys() == {"c"}
        assert outputs["c"][-1].outputs[0].token_ids == tokens_of(prompt_of(1), greedy(40))
        engine.add_request("a", prompt_of(2), seeded(1, 3))
        assert step_to_the_end(engine)["a"][-1].outputs[0].token_ids == tokens_of(prompt_of(2), seeded(1, 3))


def test_the_error_of_a_request_is_raised_once_and_the_others_go_on(engines: FaultyEngines) -> None:
    with engines.offline(Fault(do="raise", prompt_token=DEADLY, times=ALWAYS)) as llm:
        engine = llm.llm_engine
        engine.add_request("good", prompt_of(1), greedy(40))
        engine.add_request("bad", [*prompt_of(2), DEADLY], greedy(40))
        with pytest.raises(EngineGenerateError) as caught:
            step_to_the_end(engine)
        assert caught.value.__notes__ == ["request bad"]
        assert step_to_the_end(engine)["good"][-1].outputs[0].token_ids == tokens_of(prompt_of(1), greedy(40))


def test_ctrl_c_in_a_step_leaves_the_requests_alone(engines: FaultyEngines) -> None:
    with engines.offline() as llm:
        engine = llm.llm_engine
        engine.add_request("a", prompt_of(1), greedy(400, output_kind=RequestOutputKind.FINAL_ONLY))
        thread = when_tokens_come(llm, interrupt)
        with pytest.raises(KeyboardInterrupt):
            engine.step()
        thread.join()
        (output,) = step_to_the_end(engine)["a"]
        assert output.outputs[0].token_ids == tokens_of(prompt_of(1), greedy(400))


def test_an_engine_from_options(no_leaks: None) -> None:
    assert AsyncLLMEngine is AsyncLLM
    with pytest.raises(ValueError, match="unknown option modle; did you mean model"):
        LLMEngine.from_engine_args(modle="smollm2")
