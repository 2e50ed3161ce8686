r"""Patterns for the messages of failures in a job's rules: a subset of regular expressions without backtracking.

Python's own regular expressions can take exponential time, and one operator serves all jobs. These patterns take time
proportional to the length of the text: each is a Thompson automaton whose sets of states are cached (Thompson, "Regular
expression search algorithm", 1968). Supported are letters, `.`, classes such as `[^a-z]`, `\d \w \s`, `* + ?`, `|`,
groups, `^` and `$` at the ends of lines, and `(?i)` at the start. Back-references and look-around are missing because
an automaton cannot have them; counts in braces are missing because they would make the automaton large.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field

LIMIT = 256
"""Maximum number of characters in a pattern."""

NESTED = 40
"""Maximum number of groups inside each other. The parser calls itself for each of them."""

_REMEMBERED = 2048  # Maximum number of cached transitions.
_CLASSES: dict[str, Callable[[str], bool]] = {
    "d": str.isdecimal,
    "w": lambda c: c.isalnum() or c == "_",
    "s": str.isspace,
}
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r"}

Accepts = Callable[[str], bool]


class BadPattern(ValueError):
    """The text is not a valid pattern. The message says what is wrong and what would be right."""


@dataclass
class _State:
    """A state of the automaton. It reads one character that `accepts` takes (None: it reads nothing) and continues in
    each state of `then`.

    `at`: "^" or "$" if the state holds only at the start or end of a line. `final`: the pattern is found.
    """

    accepts: Accepts | None = None
    then: list[_State] = field(default_factory=list)
    at: str = ""
    final: bool = False

    __hash__ = object.__hash__


@dataclass
class _Part:
    """A part of the automaton with one entry state and one exit state; the exit state reads nothing."""

    first: _State
    last: _State


class Pattern:
    """A compiled pattern. The constructor raises BadPattern for an invalid text."""

    def __init__(self, text: str) -> None:
        if len(text) > LIMIT:
            raise BadPattern(f"at most {LIMIT} characters are expected, not {len(text)}")
        whole = _Parser(text).read()
        whole.last.then.append(_State(final=True))
        self._first = whole.first
        self._known: dict[tuple[frozenset[_State], str, bool], frozenset[_State] | None] = {}

    def found_in(self, text: str) -> bool:
        """Return whether the pattern matches somewhere in `text`, as `re.search` with MULTILINE does."""
        states: frozenset[_State] = frozenset()
        before = "\n"
        for character in [*text, ""]:
            now = self._step(states, before, character)
            if now is None:
                return True
            states, before = now, character
        return False

    def _step(self, states: frozenset[_State], before: str, character: str) -> frozenset[_State] | None:
        """Return the states after `character` ("": the end of the text), where a match may also begin. Return None if
        the pattern is found."""
        key = (states, character, before == "\n")
        if key in self._known:
            return self._known[key]
        reached = _without_reading([*states, self._first], before == "\n", character in ("", "\n"))
        result = None
        if not any(state.final for state in reached):
            result = frozenset(
                after
                for state in reached
                if state.accepts is not None and character and state.accepts(character)
                for after in state.then
            )
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        self._known[key] = result
        return result


@functools.lru_cache(maxsize=256)
def pattern(text: str) -> Pattern:
    """Return the compiled pattern of a text, from a cache. Raise BadPattern if the text is not a valid pattern."""
    return Pattern(text)


def _without_reading(states: list[_State], begins: bool, ends: bool) -> set[_State]:
    reached: set[_State] = set()
    left = list(states)
    while left:
        state = left.pop()
        if state in reached or (state.at == "^" and not begins) or (state.at == "$" and not ends):
            continue
        reached.add(state)
        if state.accepts is None:
            left += state.then
    return reached


class _Parser:
    """A recursive-descent parser that makes the automaton from the text."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.nested = 0  # Number of groups around the present character.
        self.any_case = text.startswith("(?i)")
        if self.any_case:
            self.at = 4

    def read(self) -> _Part:
        """Return the automaton of the whole text. Raise BadPattern."""
        part = self._choice()
        if self.at < len(self.text):
            raise BadPattern(f"the ')' at character {self.at + 1} closes nothing; write \\) for the character itself")
        return part

    def _choice(self) -> _Part:
        parts = [self._sequence()]
        while self._peek() == "|":
            self.at += 1
            parts.append(self._sequence())
        if len(parts) == 1:
            return parts[0]
        last = _State()
        for part in parts:
            part.last.then.append(last)
        return _Part(_State(then=[part.first for part in parts]), last)

    def _sequence(self) -> _Part:
        first = last = _State()
        while self._peek() not in ("", "|", ")"):
            part = self._repeated()
            last.then.append(part.first)
            last = part.last
        return _Part(first, last)

    def _repeated(self) -> _Part:
        part = self._atom()
        sign = self._peek()
        if sign in ("*", "+", "?"):
            self.at += 1
            first, last = _State(then=[part.first]), _State()
            part.last.then.append(last)
            if sign != "?":
                last.then.append(part.first)
            if sign != "+":
                first.then.append(last)
            part = _Part(first, last)
            if self._peek() == "?":  # A lazy repetition finds the same matches.
                self.at += 1
        if sign == "{":
            raise BadPattern(
                "counts in braces are not supported; repeat the part instead, or write \\{ for the character itself"
            )
        return part

    def _atom(self) -> _Part:
        start, sign = self.at, self._peek()
        self.at += 1
        if sign == "(":
            return self._group(start)
        if sign == "[":
            return self._one(self._class(start))
        if sign == "\\":
            return self._one(self._escaped(start))
        if sign == ".":
            return self._one(lambda c: c != "\n")
        if sign in "^$":
            state = _State(at=sign)
            return _Part(state, state)
        if sign in "*+?":
            raise BadPattern(f"the '{sign}' at character {start + 1} repeats nothing; write \\{sign} for the character")
        if sign == "{":
            raise BadPattern(
                "counts in braces are not supported; repeat the part instead, or write \\{ for the character itself"
            )
        return self._one(self._letter(sign))

    def _group(self, start: int) -> _Part:
        if self._peek() == "?":
            if self.text[self.at : self.at + 2] != "?:":
                raise BadPattern(
                    f"the group at character {start + 1} begins with '(?': look-around, named groups and flags in "
                    f"groups are not supported; (?i) is allowed at the start"
                )
            self.at += 2
        self.nested += 1
        if self.nested > NESTED:
            raise BadPattern(f"the group at character {start + 1} is inside {NESTED} others, and no more are supported")
        part = self._choice()
        self.nested -= 1
        if self._peek() != ")":
            raise BadPattern(f"the '(' at character {start + 1} is never closed; write \\( for the character itself")
        self.at += 1
        return part

    def _class(self, start: int) -> Accepts:
        inverted = self._peek() == "^"
        self.at += inverted
        tests: list[Accepts] = []
        begun = self.at
        while (sign := self._peek()) != "]" or self.at == begun:
            if not sign:
                raise BadPattern(
                    f"the '[' at character {start + 1} is never closed; write \\[ for the character itself"
                )
            low = self._member()
            if self._peek() == "-" and self.text[self.at + 1 : self.at + 2] not in ("]", "") and isinstance(low, str):
                self.at += 1
                high = self._member()
                if not isinstance(high, str) or high < low:
                    raise BadPattern(f"the range in the '[' at character {start + 1} runs backwards")
                tests.append(self._range(low, high))
            else:
                tests.append(self._letter(low) if isinstance(low, str) else low)
        self.at += 1
        return lambda c: any(test(c) for test in tests) is not inverted

    def _member(self) -> str | Accepts:
        sign = self._peek()
        self.at += 1
        if sign != "\\":
            return sign
        return self._meaning(self.at - 1)

    def _escaped(self, start: int) -> Accepts:
        meaning = self._meaning(start)
        return self._letter(meaning) if isinstance(meaning, str) else meaning

    def _meaning(self, start: int) -> str | Accepts:
        """Return what a backslash and the next character mean: one character, or the test of a class of characters."""
        sign = self._peek()
        self.at += 1
        if sign in _CLASSES and sign:
            return _CLASSES[sign]
        if sign and sign.lower() in _CLASSES:
            known = _CLASSES[sign.lower()]
            return lambda c: not known(c)
        if sign in _CONTROLS:
            return _CONTROLS[sign]
        if not sign or sign.isalnum():
            raise BadPattern(f"'\\{sign}' at character {start + 1} isn't known; \\d, \\w, \\s and \\. are")
        return sign

    def _letter(self, letter: str) -> Accepts:
        if self.any_case:
            folded = letter.casefold()
            return lambda c: c.casefold() == folded
        return lambda c: c == letter

    def _range(self, low: str, high: str) -> Accepts:
        if self.any_case:
            return lambda c: low <= c.lower() <= high or low <= c.upper() <= high
        return lambda c: low <= c <= high

    def _one(self, accepts: Accepts) -> _Part:
        last = _State()
        return _Part(_State(accepts, [last]), last)

    def _peek(self) -> str:
        return self.text[self.at : self.at + 1]
