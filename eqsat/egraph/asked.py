"""What a rule's functions asked about classes and did not find: when it may be otherwise, they are asked again."""

from __future__ import annotations

from dataclasses import dataclass

EVERYWHERE = -1
"""The class of what is asked of all terms together."""


@dataclass(slots=True, eq=False)
class Question:
    """A match that was refused for want of something known. ``of`` is what to try again; ``open`` until it is."""

    of: object
    open: bool = True


class Asked:
    """Questions by class and by kind: ``known``, ``value``, ``array``, ``original``, an operator (forms of it),
    ``room`` for more terms, or ``small``, of all classes.

    A fact once there stays, so that only its lack is noted, at the cost of a list's ``append``; a change costs a look
    into a table that has no more entries than refused matches asked for.
    """

    def __init__(self) -> None:
        self._heard: list[tuple[int, str]] | None = None
        self._waiting: dict[int, dict[str, list[Question]]] = {}
        self._ready: list[Question] = []

    def listen(self) -> None:
        """Note what is lacking from now on."""
        self._heard = []

    def lacks(self, handle: int, kind: str) -> bool:
        """Note, while listening, that a class lacks something. Always False."""
        if self._heard is not None:
            self._heard.append((handle, kind))
        return False

    def wait(self, of: object) -> None:
        """``of`` is to be tried again when any of what was lacking since ``listen`` may be there."""
        heard, self._heard = self._heard or [], None
        if heard:
            question = Question(of)
            for handle, kind in dict.fromkeys(heard):
                self._waiting.setdefault(handle, {}).setdefault(kind, []).append(question)

    def answered(self) -> None:
        """Nothing was lacking that mattered."""
        self._heard = None

    def tell(self, handle: int, kind: str) -> None:
        """Something of this kind has become known of a class."""
        waiting = self._waiting.get(handle)
        if waiting is not None:
            self._ready.extend(waiting.pop(kind, ()))

    def tell_all(self, handle: int) -> None:
        """A class has become part of another one, of which anything may be known."""
        for questions in self._waiting.pop(handle, {}).values():
            self._ready.extend(questions)

    def again(self) -> list[object]:
        """What is to be tried again, in the order in which it became so."""
        ready, self._ready = self._ready, []
        found = []
        for question in ready:
            if question.open:
                question.open = False
                found.append(question.of)
        return found
