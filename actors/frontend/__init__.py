"""The frontend: AsyncLLM and its parts. It lives in the user's process (or an API server) and never imports torch."""
