"""What it costs to notice that an answer goes in circles."""

from typing import SupportsIndex, overload

from ringpost.ipc.messages.sampling import RepetitionDetectionParams
from ringpost.sched.repetition import Repetition


class Counted(list[int]):
    """Counts how many of its tokens are read."""

    read = 0

    @overload
    def __getitem__(self, index: SupportsIndex) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> int | list[int]:
        found = super().__getitem__(index)
        self.read += len(found) if isinstance(found, list) else 1
        return found


def test_a_token_costs_as_much_as_the_largest_pattern_whatever_is_before_it() -> None:
    rule = RepetitionDetectionParams(max_pattern_size=64, min_pattern_size=32, min_count=30)
    output = Counted([5] * 2000)
    output[::301] = [6] * len(range(0, 2000, 301))  # now and then another token
    repetition = Repetition(rule)
    assert not repetition.ends_in(output, 5)
    output.append(5)
    output.read = 0
    for _ in range(100):
        assert not repetition.ends_in(output, 5)
        output.append(5)
    assert output.read <= 100 * 64


def test_it_is_found_wherever_one_begins_to_look() -> None:
    rule = RepetitionDetectionParams(max_pattern_size=7, min_count=3)
    output = [1, 2, *[3, 4, 3, 5] * 3]
    for begin in range(len(output)):
        repetition = Repetition(rule)
        ends = [index for index in range(begin, len(output)) if repetition.ends_in(output[:index], output[index])]
        assert ends == [len(output) - 1]
