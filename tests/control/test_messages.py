"""Messages on the wire: old ones are understood for ever, and nothing that anybody sends is more than refused.

What lies below corpus/ was sent by a released version: add to it, and change nothing there.
"""

import asyncio
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster.contract import wire
from trainmaster.contract.wire import (
    Directive,
    DirectiveState,
    JoinRequest,
    Report,
    WireError,
    decode,
    encode,
)
from trainmaster_operator.control.authentication import Admission
from trainmaster_operator.control.fleet import Fleet
from trainmaster_operator.runtime.virtual_clock import run_virtual

CORPUS = sorted((Path(__file__).parent / "corpus").rglob("*.json"))
OPEN = {"facts", "clock", "events", "mesh"}  # whose keys are anybody's
KINDS = {"join": JoinRequest, "report": Report, "directive": Directive}


def kind_of(path):
    return KINDS[path.stem.partition("-")[0]]


def holds(whole, part):
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(key in whole and holds(whole[key], part[key]) for key in part)
    if isinstance(part, list):
        return len(whole) == len(part) and all(map(holds, whole, part))
    return whole == part


def test_each_name_of_the_package_is_there_and_no_other_is():
    assert set(wire._MODULES) == set(wire.__all__)
    for name in wire.__all__:
        assert getattr(wire, name) is not None
    with pytest.raises(AttributeError, match=r"module 'trainmaster\.contract\.wire' has no attribute 'nothing'"):
        wire.nothing  # noqa: B018


def test_there_is_a_corpus():
    assert {path.stem for path in CORPUS} >= {"join", "report", "directive"}


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_what_was_once_sent_is_understood_word_for_word(path):
    old = json.loads(path.read_text())
    assert holds(json.loads(encode(decode(kind_of(path), path.read_bytes()))), old)


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_unknown_fields_are_ignored_wherever_they_are(path):
    def with_more(value, name=""):
        if isinstance(value, list):
            return [with_more(item, name) for item in value]
        if not isinstance(value, dict) or name in OPEN:
            return value
        return {"of a later version": [1], **{key: with_more(item, key) for key, item in value.items()}}

    raw, kind = path.read_bytes(), kind_of(path)
    more = json.dumps(with_more(json.loads(raw)))
    assert more.count("of a later version") > 1 or "smallest" in path.stem
    assert encode(decode(kind, more)) == encode(decode(kind, raw))


def test_a_former_protocol_is_spoken_and_others_are_not():
    old = json.loads(CORPUS[-1].read_text())
    for protocol in (0, 1):
        decode(kind_of(CORPUS[-1]), json.dumps({**old, "protocol": protocol}))
    for protocol in (-1, 2, "1", None, True, 10**400, [[[]]]):
        with pytest.raises(WireError, match="is not supported"):
            decode(kind_of(CORPUS[-1]), json.dumps({**old, "protocol": protocol}))


def test_a_fleet_answers_what_was_once_sent():
    async def main():
        async def authenticate(credential, claim):
            return Admission(await claim())

        report = next(decode(Report, path.read_bytes()) for path in CORPUS if path.stem == "report")
        me = report.identity
        clock = asyncio.get_running_loop().clock
        fleet = Fleet(clock, authenticate, lambda key, delay_s: None, lambda key, uid: uid == me.job_uid)
        told = Directive(8, DirectiveState.HOLD, 13, "new")
        fleet.publish((me.namespace, me.job), me.job_uid, 13, [0, 0, 0, 2], lambda slot: told)
        for path in CORPUS:
            message = decode(kind_of(path), path.read_bytes())
            if isinstance(message, JoinRequest):
                assert await fleet.join(me, message) == told
            elif isinstance(message, Report):
                assert await fleet.report(me, message) == told

    run_virtual(main())


# -- whatever anybody sends

words = st.text(max_size=20) | st.sampled_from(["nan", "inf", "\ud800", "\x00", "running", "wait", "9" * 400])
numbers = st.integers() | st.integers(-(10**400), 10**400) | st.floats() | st.sampled_from([2**63, -(2**63) - 1])
values = st.recursive(
    st.none() | st.booleans() | numbers | words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4),
    max_leaves=8,
)


def dump(value):
    return json.dumps(value).encode()


@st.composite
def damaged(draw):
    """A good message in which something was replaced, removed or cut off."""
    path = draw(st.sampled_from(CORPUS))
    message = json.loads(path.read_text())
    places = []

    def walk(value):
        for key in value if isinstance(value, dict) else range(len(value)):
            places.append((value, key))
            if isinstance(value[key], (dict, list)):
                walk(value[key])

    walk(message)
    for _ in range(draw(st.integers(1, 3))):
        where, key = draw(st.sampled_from(places))
        if draw(st.booleans()) and isinstance(where, dict):
            where.pop(key, None)
        elif isinstance(where, dict) or key < len(where):
            where[key] = draw(values)
    raw = dump(message)
    return kind_of(path), raw[: draw(st.integers(0, len(raw)))] if draw(st.integers(0, 9)) == 0 else raw


@given(damaged())
@settings(max_examples=300, deadline=None)
def test_a_damaged_message_is_understood_or_refused_in_one_sentence(message):
    kind, raw = message
    try:
        understood = decode(kind, raw)
    except WireError as refused:
        words = str(refused)
    else:
        words = kind.__name__
        # What was let in can be sent on, and written anywhere.
        assert encode(decode(kind, encode(understood))) == encode(understood)
        str(understood).encode()
    assert words.startswith(kind.__name__)
    assert len(words) < 1000


@given(st.binary(max_size=200) | values.map(dump))
@settings(max_examples=200, deadline=None)
def test_anything_else_is_refused(raw):
    for kind in KINDS.values():
        with pytest.raises(WireError):
            decode(kind, raw)


@pytest.mark.parametrize(
    "raw",
    [
        "[" * 100_000,
        '{"a":' * 100_000,
        '{"identity": ' + "[" * 900 + "]" * 900 + "}",
        '{"identity": ' + '{"a":' * 900 + "1" + "}" * 900 + "}",
        "1" * 100_000,
        '{"protocol": ' + "1" * 5000 + "}",
        '"' + "x" * 1_000_000 + '"',
        b"\xff\xfe\x00",
        b"",
        "NaN",
    ],
    ids=lambda raw: repr(raw[:15]),
)
def test_monsters_are_refused_in_a_short_sentence(raw):
    for kind in KINDS.values():
        with pytest.raises(WireError) as refused:
            decode(kind, raw)
        assert len(str(refused.value)) < 1000


def test_open_values_may_be_nested_as_deep_as_anybody_needs_and_no_deeper():
    old = json.loads(next(path for path in CORPUS if path.stem == "join").read_text())

    def nested(depth):
        value = 1
        for _ in range(depth):
            value = [value]
        return json.dumps({**old, "facts": {"deep": value}})

    decode(JoinRequest, nested(10))
    for depth in (100, 900):
        with pytest.raises(WireError, match=r"JoinRequest\.facts\.deep: is nested"):
            decode(JoinRequest, nested(depth))


def test_words_with_half_a_character_are_kept_without_it():
    old = json.loads(next(path for path in CORPUS if path.stem == "report").read_text())
    old["verdict"]["message"] = "last words \udcff of a broken terminal"
    message = decode(Report, json.dumps(old)).verdict.message
    assert message == "last words ? of a broken terminal"
    message.encode()
