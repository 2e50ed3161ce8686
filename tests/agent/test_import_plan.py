"""What a zygote imports in advance, given what a rank has imported and which modules do harm."""

from __future__ import annotations

import pytest

from trainmaster.agent.zygote.import_plan import Imported, blame, choose, join

FRAME = [
    Imported("frame", ""),
    Imported("frame.math", "frame"),
    Imported("arrow", "frame"),
    Imported("arrow.lib", "arrow"),
    Imported("ordinary", "frame"),
    Imported("trainer", ""),
    Imported("trainer.loop", "trainer"),
    Imported("hub", "trainer.loop"),
]


@pytest.mark.parametrize(
    ("barred", "left_out"),
    [
        (set(), set()),
        ({"hub"}, {"hub", "trainer.loop", "trainer"}),
        ({"trainer.loop"}, {"trainer.loop", "trainer"}),
        ({"arrow.lib"}, {"arrow.lib", "arrow", "frame", "frame.math"}),
        ({"frame"}, {"frame", "frame.math"}),
    ],
)
def test_what_brings_a_barred_module_along_is_left_out_and_the_rest_stays(barred: set[str], left_out: set[str]) -> None:
    assert choose(FRAME, barred) == [i.name for i in FRAME if i.name not in left_out]


def test_a_submodule_is_left_out_with_its_package_wherever_it_was_imported() -> None:
    imports = [Imported("a", ""), Imported("b", "a"), Imported("c", ""), Imported("a.late", "c"), Imported("d", "")]
    assert choose(imports, {"b"}) == ["d"]


def test_the_innermost_import_that_was_planned_is_blamed() -> None:
    assert blame(FRAME, (), ["arrow.lib", "arrow", "frame"]) == "arrow.lib"
    assert blame(FRAME, (), ["unknown", "arrow", "frame"]) == "arrow"
    assert blame(FRAME, {"arrow"}, ["arrow.lib", "arrow", "frame"]) == ""


def test_what_is_told_later_comes_after_what_is_known() -> None:
    assert join(FRAME[:2], [*FRAME[1:3], Imported("frame", "other")]) == FRAME[:3]
