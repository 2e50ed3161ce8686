"""What agents show each other."""

from __future__ import annotations

from trainmaster.contract.wire import Assignment, Directive, DirectiveState, StoreAddress
from trainmaster_operator.control.peer_secrets import peer_secret, with_secret

KEY, OTHER = b"k" * 32, b"o" * 32


def test_a_secret_belongs_to_one_round_of_one_job_and_one_key() -> None:
    secrets = {peer_secret(key, uid, round) for key in (KEY, OTHER) for uid in ("a", "a1") for round in (1, 11)}
    assert len(secrets) == 8
    assert peer_secret(KEY, "a", 1) in secrets
    assert peer_secret(KEY, "a", 11) != peer_secret(KEY, "a1", 1)


def test_a_directive_carries_the_secret_of_its_round_under_the_same_tag() -> None:
    assignment = Assignment(3, 4, 0, 1, 0, 4, StoreAddress("h", 1), 2)
    directive = Directive(1, DirectiveState.RUN, 3, "tag", assignment=assignment)
    told = with_secret(directive, "a secret")
    assert told.assignment is not None
    assert told.assignment.peer_secret == "a secret"
    assert told.tag == "tag"
    assert with_secret(Directive(1, DirectiveState.HOLD, 3, "tag"), "a secret").assignment is None
