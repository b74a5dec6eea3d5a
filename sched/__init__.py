"""The scheduler: which tokens of which requests the next step computes, and where their KV lives.

Pure and synchronous: no torch, no event loop, no clock, no files. It returns plans and takes in results.
"""
