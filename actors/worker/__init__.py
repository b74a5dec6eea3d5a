"""The worker process: one per device rank; holds the weights and the KV cache and runs the steps it is sent."""
