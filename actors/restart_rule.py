"""RestartRule: whether an actor that died gets a successor, and when. Pure."""

_FIRST_DELAY, _LONGEST_DELAY = 1.0, 30.0  # seconds before the second restart in a row, and between any two


class RestartRule:
    """Counts the deaths of one actor that come in a row: with no finished step between.

    A death that one request alone is to blame for does not count, since that request goes, after one or two such deaths; but
    neither may too many of those come in a row, or an actor that can do no work would be given one request after the other.
    """

    def __init__(self, max_restarts: int) -> None:
        """`max_restarts`: in a row."""
        self._max_restarts = max_restarts
        self._blamed = 0
        self.deaths = 0

    def died(self, *, steps: int, blamed: bool) -> float | None:
        """Seconds until the successor starts, None for none. `steps` are those that the actor finished since its own start."""
        if steps:
            self.deaths = self._blamed = 0
        if blamed:
            self.deaths, self._blamed = 0, self._blamed + 1
        else:
            self.deaths += 1
        in_a_row = max(self.deaths, (self._blamed + 1) // 2)
        if in_a_row > self._max_restarts:
            return None
        return 0.0 if in_a_row == 1 else min(_FIRST_DELAY * 2 ** (in_a_row - 2), _LONGEST_DELAY)
