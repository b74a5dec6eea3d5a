"""Benchmarks of Ringpost's parts beside what one would use instead, measured in one run; `ringpost bench` shows them."""
