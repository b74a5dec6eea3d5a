"""The processes: one folder a kind, and beside them what belongs to no kind."""
