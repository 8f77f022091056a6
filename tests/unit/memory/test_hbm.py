from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath.memory.hbm import Budget, HbmLedger


def ledger(capacity: int, **allocated: int) -> HbmLedger[str]:
    made: HbmLedger[str] = HbmLedger(capacity)
    for owner, tokens in allocated.items():
        assert made.allocate(owner, tokens)
    return made


def test_promises_count_as_taken_but_keep_nobody_from_allocating() -> None:
    hbm = ledger(10)
    hbm.promise("a", 7)
    hbm.promise("b", 7)
    assert (hbm.promised_tokens, hbm.free_tokens) == (14, 0)
    assert hbm.allocate("b", 8)
    assert (hbm.allocated_tokens, hbm.promised_tokens) == (8, 7)
    assert not hbm.allocate("a", 7)
    assert (hbm.allocated_tokens, hbm.promised_tokens) == (8, 7)
    hbm.release("b")
    assert hbm.allocate("a", 7)
    assert hbm.free_tokens == 3


def test_a_second_promise_replaces_the_first_and_withdrawing_is_idempotent() -> None:
    hbm = ledger(10)
    hbm.promise("a", 4)
    hbm.promise("a", 6)
    assert hbm.promised_tokens == 6
    hbm.withdraw("a")
    hbm.withdraw("a")
    assert hbm.promised_tokens == 0


def test_growing_names_the_youngest_first_and_no_more_than_needed() -> None:
    hbm = ledger(10, a=4, b=2, c=2, d=2)
    assert hbm.owners == ["a", "b", "c", "d"]
    assert hbm.grow("a", 3) == ["d", "c"]
    assert hbm.allocated_tokens == 10
    hbm.release("d")
    assert hbm.grow("a", 3) == ["c"]
    hbm.release("c")
    assert hbm.grow("a", 3) == []
    assert hbm.allocated_tokens == 9


def test_the_youngest_goes_itself() -> None:
    hbm = ledger(10, a=5, b=5)
    assert hbm.grow("b", 1) == ["b"]


def test_nobody_is_pre_empted_in_vain() -> None:
    hbm = ledger(10, a=7, b=2, c=1)
    assert hbm.grow("b", 2) == ["b"]


def test_what_victims_gave_up_is_kept_for_who_grows() -> None:
    hbm = ledger(10, a=5, b=5)
    assert hbm.grow("a", 1) == ["b"]
    hbm.release("b")
    assert not hbm.allocate("c", 5)
    assert hbm.allocate("d", 4)
    assert hbm.grow("a", 1) == []
    assert hbm.allocated_tokens == 10


def test_a_claim_ends_with_its_owner() -> None:
    hbm = ledger(10, a=5, b=5)
    assert hbm.grow("a", 1) == ["b"]
    hbm.release("b")
    hbm.release("a")
    assert hbm.allocate("c", 10)


def test_misuse_of_the_ledger_raises() -> None:
    hbm = ledger(10, a=5)
    with pytest.raises(ValueError, match="use grow"):
        hbm.allocate("a", 1)
    with pytest.raises(ValueError, match="cannot be promised more"):
        hbm.promise("a", 1)
    with pytest.raises(KeyError):
        hbm.grow("b", 1)
    with pytest.raises(ValueError, match="give 0 or more"):
        hbm.allocate("b", -1)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["promise", "withdraw", "allocate", "grow", "release"]),
            st.integers(0, 4),
            st.integers(0, 12),
        ),
        max_size=60,
    )
)
def test_never_more_is_allocated_than_there_is_and_the_oldest_always_grows(
    steps: list[tuple[str, int, int]],
) -> None:
    hbm: HbmLedger[int] = HbmLedger(20)
    held: dict[int, int] = {}
    for kind, owner, tokens in steps:
        if kind == "promise" and owner not in held:
            hbm.promise(owner, tokens)
        elif kind == "withdraw":
            hbm.withdraw(owner)
        elif kind == "allocate" and owner not in held:
            if hbm.allocate(owner, tokens):
                held[owner] = tokens
        elif kind == "grow" and owner in held:
            while victims := hbm.grow(owner, tokens):
                oldest = next(iter(held))
                if owner == oldest and held[owner] + tokens <= 20:
                    assert owner not in victims
                assert victims == [owner] or owner not in victims
                for victim in victims:
                    hbm.release(victim)
                    del held[victim]
                if owner not in held:
                    break
            else:
                held[owner] += tokens
        elif kind == "release":
            hbm.release(owner)
            held.pop(owner, None)
        assert hbm.owners == list(held)
        assert hbm.allocated_tokens == sum(held.values()) <= 20
        assert hbm.free_tokens >= 0
    for owner in range(5):
        hbm.release(owner)
    assert (hbm.allocated_tokens, hbm.promised_tokens, hbm.free_tokens) == (0, 0, 20)


def test_a_budget_is_taken_whole_or_not_at_all() -> None:
    budget = Budget(5)
    assert budget.try_take(3)
    assert not budget.try_take(3)
    assert (budget.used, budget.free, budget.total) == (3, 2, 5)
    budget.give(3)
    with pytest.raises(ValueError, match="1 came back, but only 0 were taken"):
        budget.give(1)
