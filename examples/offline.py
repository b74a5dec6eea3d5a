"""All answers to a list of prompts, and to a conversation: `python examples/offline.py`."""

from ringpost import LLM, SamplingParams

PROMPTS = ["The capital of France is", "Once upon a time", "def fibonacci(n):"]

with LLM("smollm2", max_model_len=2048) as llm:
    for output in llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=24)):
        print(f"{output.prompt!r}: {output.outputs[0].text!r}")

    conversation = [{"role": "user", "content": "What is the capital of France?"}]
    (output,) = llm.chat(conversation, SamplingParams(temperature=0, max_tokens=24))
    print(f"chat: {output.outputs[0].text!r}")
