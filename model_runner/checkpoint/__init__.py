"""Finding a model by name or path, converting it where needed, and checking it; no module here imports torch."""
