"""OpenAI's own client with a running `ringpost serve`: `python examples/openai_client.py [http://127.0.0.1:8000/v1]`."""

import os
import sys

from openai import OpenAI

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1"
KEY = os.environ.get("RINGPOST_API_KEY", "none")  # the client wants one, also where the server does not


def main() -> None:
    with OpenAI(base_url=URL, api_key=KEY) as client:
        model = client.models.list().data[0].id
        print(f"model: {model}")

        question = "What is the capital of France?"
        with client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": question}], temperature=0, max_tokens=40, stream=True
        ) as chunks:
            print("chat:  ", end="")
            for chunk in chunks:
                print(chunk.choices[0].delta.content or "", end="", flush=True)
            print()

        with client.completions.create(
            model=model,
            prompt="The capital of France is",
            temperature=0,
            max_tokens=8,
            stream=True,
            stream_options={"include_usage": True},
        ) as events:
            print("completion:", end="")
            for event in events:
                if event.usage is not None:  # the last one
                    print(f"\nusage: {event.usage.prompt_tokens} + {event.usage.completion_tokens} tokens")
                for choice in event.choices:
                    print(choice.text, end="", flush=True)


main()
