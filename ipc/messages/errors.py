"""The error of a value that a caller may not send, in a form that every edge can pass on."""


class ParameterError(ValueError):
    """A request's parameter is wrong. The message names the parameter, the value and what would be right."""

    def __init__(self, message: str, parameter: str, code: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter
        self.code = code  # a stable name for programs, in OpenAI's spelling, where there is one
