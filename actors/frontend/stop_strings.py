"""Stop strings: where a text that grows first holds one, and how much of it may be shown before that is known."""

from collections.abc import Sequence
from functools import lru_cache


class StopStrings:
    """Watches the text of one answer, character by character, for all stop strings at once (Knuth, Morris and Pratt).

    The match that ends first counts; of two that end together, the one named first. Held back is only what may still become a
    match: the longest end of the text with which a stop string begins; nothing, if the stop string is to be shown.
    """

    def __init__(self, stops: Sequence[str], *, include: bool) -> None:
        self._stops = stops
        self._fallbacks = [_fallbacks(stop) for stop in stops]
        self._matched = [0] * len(stops)  # characters of each with which the text ends
        self._beginnings = frozenset(stop[0] for stop in stops)
        self._include = include
        self._held = ""

    def push(self, text: str, *, counts: bool = True) -> tuple[str, str | None]:
        """(what may be shown now, the stop string that ends the answer here). Without `counts` a match does not end it."""
        if not any(self._matched) and self._beginnings.isdisjoint(text):
            return text, None
        for index, character in enumerate(text):
            found = self._advance(character)
            if found is not None and counts:
                whole = self._held + text[: index + 1]
                self._held = ""
                return (whole if self._include else whole[: -len(found)]), found
        whole = self._held + text
        held = 0 if self._include else max(self._matched)
        shown = len(whole) - held
        self._held = whole[shown:]
        return whole[:shown], None

    def flush(self) -> str:
        """The text ends here: what was held back."""
        held, self._held = self._held, ""
        return held

    def _advance(self, character: str) -> str | None:
        """Take a character; the first stop string that ends with it, if one does."""
        found: str | None = None
        for number, stop in enumerate(self._stops):
            fallbacks, matched = self._fallbacks[number], self._matched[number]
            while matched and stop[matched] != character:
                matched = fallbacks[matched - 1]
            matched += stop[matched] == character
            if matched == len(stop):
                found = found or stop
                matched = fallbacks[matched - 1]
            self._matched[number] = matched
        return found


@lru_cache(maxsize=512)
def _fallbacks(stop: str) -> list[int]:
    """For each beginning of a string: the longest shorter one that is also its end. Many answers share stop strings."""
    fallbacks, matched = [0], 0
    for character in stop[1:]:
        while matched and stop[matched] != character:
            matched = fallbacks[matched - 1]
        matched += stop[matched] == character
        fallbacks.append(matched)
    return fallbacks
