"""Images that run as a user whom they don't know, in group 0, as OpenShift has it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FILES = sorted((Path(__file__).parents[2] / "docker").glob("*.Dockerfile"))


def last_stage(file: Path) -> str:
    """Its instructions, with lines that go on in the next one joined."""
    return re.split(r"^FROM ", file.read_text().replace("\\\n", " "), flags=re.MULTILINE)[-1]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_what_the_user_may_write_group_0_may_write_too(file: Path) -> None:
    stage = last_stage(file)
    (home,) = re.findall(r"^ENV HOME=(\S+)", stage, re.MULTILINE)
    assert f"chgrp -R 0 {home}" in stage
    assert f"chmod -R g=u {home}" in stage
    for options in re.findall(r"install (--directory [^&\n]*)", stage):
        assert "--group=0" in options
        assert re.search(r"--mode=0?77\d", options)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_user_without_an_entry_in_passwd_has_a_name_and_a_home(file: Path) -> None:
    """torch asks getpass for the user's name, which looks at USER first."""
    assert re.search(r"^ENV HOME=\S+ USER=\S+", last_stage(file), re.MULTILINE)
