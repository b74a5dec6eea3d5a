"""Whether an answer goes in circles."""

from collections.abc import Sequence

from ..ipc.messages.sampling import RepetitionDetectionParams


class Repetition:
    """Looks for one answer's rule, token by token: at most `max_pattern_size` steps for each.

    A run is how many of the last tokens are those that a pattern's size comes before them.
    """

    __slots__ = ("_known", "_rule", "_runs")

    def __init__(self, rule: RepetitionDetectionParams) -> None:
        self._rule = rule
        self._known = -1  # tokens of the answer that `_runs` is about
        self._runs: dict[int, int] = {}  # by size, but for those of no token

    def ends_in(self, output: Sequence[int], token: int) -> bool:
        """Whether `output`, with `token` behind it, ends in one pattern so often in a row as the rule says.

        All of `output` is looked through unless it ends with the token that was asked of last.
        """
        rule = self._rule
        if len(output) != self._known:
            self._runs = _runs_of(output, rule.max_pattern_size)
        self._known = len(output) + 1
        last = output[: -rule.max_pattern_size - 1 : -1]
        before, self._runs = self._runs, {}
        size = max(rule.min_pattern_size, 1) - 1
        found = False  # all sizes are looked at even so: below min_tokens the answer goes on
        while True:
            try:
                size = last.index(token, size) + 1  # of the next pattern that is possible
            except ValueError:
                return found
            run = self._runs[size] = before.get(size, 0) + 1
            found = found or run >= size * (rule.min_count - 1)


def _runs_of(output: Sequence[int], largest: int) -> dict[int, int]:
    """The runs at the end of `output`, up to this size, in one pass (the Z algorithm, from the end)."""
    back = output[::-1]
    runs = [0]
    first = end = 0  # the run that reaches farthest back is of size `first`
    for size in range(1, min(largest, len(back) - 1) + 1):
        run = min(runs[size - first], end - size) if size < end else 0
        while size + run < len(back) and back[run] == back[size + run]:
            run += 1
        runs.append(run)
        if size + run > end:
            first, end = size, size + run
    return {size: run for size, run in enumerate(runs) if run}
