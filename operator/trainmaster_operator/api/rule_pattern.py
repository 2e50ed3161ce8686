"""Patterns in texts that a job's rules bring along: a subset of regular expressions without backtracking.

Python's own expressions can take exponential time, and the operator serves all jobs. These take time proportional to
the text: a Thompson automaton whose sets of states are remembered (Thompson, "Regular expression search algorithm",
1968). Letters, `.`, classes such as `[^a-z]`, `\\d \\w \\s`, `* + ?`, `|`, groups, `^` and `$` at the ends of lines,
and `(?i)` in front. No back-references, no looking around, no counts in braces: an automaton can't have the first and
would grow by the last.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field

LIMIT = 256
"""Characters of a pattern."""

_REMEMBERED = 2048  # transitions
_CLASSES: dict[str, Callable[[str], bool]] = {
    "d": str.isdecimal,
    "w": lambda c: c.isalnum() or c == "_",
    "s": str.isspace,
}
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r"}

Accepts = Callable[[str], bool]


class BadPattern(ValueError):
    """A pattern that isn't one of these: what is wrong, and what would be right."""


@dataclass
class _State:
    """Reads one character that `accepts` takes (None: reads nothing), then is in `then`.

    `at`: "^" or "$" hold only there; `final`: the pattern has been found.
    """

    accepts: Accepts | None = None
    then: list[_State] = field(default_factory=list)
    at: str = ""
    final: bool = False

    __hash__ = object.__hash__


@dataclass
class _Part:
    """A piece of the automaton: one way in, one way out that reads nothing."""

    first: _State
    last: _State


class Pattern:
    """Raises BadPattern for what can't be one."""

    def __init__(self, text: str) -> None:
        if len(text) > LIMIT:
            raise BadPattern(f"at most {LIMIT} characters are expected, not {len(text)}")
        whole = _Parser(text).read()
        whole.last.then.append(_State(final=True))
        self._first = whole.first
        self._known: dict[tuple[frozenset[_State], str, bool], frozenset[_State] | None] = {}

    def found_in(self, text: str) -> bool:
        """Return whether it matches somewhere in `text`, as `re.search` with MULTILINE would say."""
        states: frozenset[_State] = frozenset()
        before = "\n"
        for character in [*text, ""]:
            now = self._step(states, before, character)
            if now is None:
                return True
            states, before = now, character
        return False

    def _step(self, states: frozenset[_State], before: str, character: str) -> frozenset[_State] | None:
        """The states after `character` ("": the end) at a place that a match may begin at; None: it has been found."""
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
    """Return the pattern of this text, made once. Raises BadPattern."""
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
    """From the text to the automaton, by recursive descent."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.any_case = text.startswith("(?i)")
        if self.any_case:
            self.at = 4

    def read(self) -> _Part:
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
            if self._peek() == "?":  # a lazy one finds the same
                self.at += 1
        if sign == "{":
            raise BadPattern("counts in braces aren't known; write the part as often, or \\{ for the character itself")
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
            raise BadPattern("counts in braces aren't known; write the part as often, or \\{ for the character itself")
        return self._one(self._letter(sign))

    def _group(self, start: int) -> _Part:
        if self._peek() == "?":
            if self.text[self.at : self.at + 2] != "?:":
                raise BadPattern(
                    f"the group at character {start + 1} begins with '(?': looking around, names and flags in groups "
                    f"aren't known; (?i) may stand in front"
                )
            self.at += 2
        part = self._choice()
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
        """What follows a backslash: a character, or a class of them."""
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
