"""The engine core process: schedules requests and drives the workers. It loads neither torch nor a tokenizer."""
