"""Places and tokens of keys, on a clock of the test's own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath.gateway.admission import Admission, TokenBucket
from dualpath.gateway.errors import ApiError
from dualpath.settings import KeyLimits


def refusal(admission: Admission, tenant: str, now_s: float) -> ApiError:
    with pytest.raises(ApiError) as caught:
        admission.take(tenant, now_s)
    return caught.value


def test_a_key_has_its_own_bound_else_the_usual_one() -> None:
    admission = Admission(10, KeyLimits(requests=2), {"ann": KeyLimits(requests=1)})
    admission.take("ann", 0)
    held = [admission.take("bob", 0) for _ in range(2)]
    for tenant in ("ann", "bob"):
        assert refusal(admission, tenant, 0).code == "capacity"
    held[0].give_back(0, 0)
    admission.take("bob", 0)
    assert admission.used == 3


def test_prompt_and_answer_count_and_the_refusal_says_when_to_come_back() -> None:
    admission = Admission(10, KeyLimits(tokens_per_minute=600))
    place = admission.take("ann", 0)
    place.charge(500, 0)
    place.give_back(400, 1)
    # 600 − 500 + 10 − 400 = −290: one token is there in 29.1 s.
    error = refusal(admission, "ann", 1)
    assert (error.status, error.code) == (429, "rate_limit_exceeded")
    assert error.headers() == {"Retry-After": "30"}
    admission.take("bob", 1)
    admission.take("ann", 31)


def test_a_prompt_longer_than_what_is_left_is_refused_and_its_place_is_free_again() -> None:
    admission = Admission(10, KeyLimits(), {"ann": KeyLimits(tokens_per_minute=60)})
    first = admission.take("ann", 0)
    first.charge(50, 0)
    second = admission.take("ann", 0)
    with pytest.raises(ApiError, match="60 tokens a minute"):
        second.charge(20, 0)
    second.give_back(0, 0)
    assert admission.used == 1
    third = admission.take("ann", 10)
    third.charge(20, 10)


def test_a_prompt_longer_than_a_minutes_tokens_is_served_by_a_full_bucket() -> None:
    admission = Admission(10, KeyLimits(tokens_per_minute=60))
    admission.take("ann", 0).charge(600, 0)
    assert refusal(admission, "ann", 540).retry_after_s == 1
    admission.take("ann", 542)


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(1, 5000))), st.integers(1, 1000))
def test_who_waits_as_told_is_served(events: list[tuple[float, int]], per_minute: int) -> None:
    """And no more is given in any time than a minute's tokens and what that time brings, but for the last request."""
    bucket, now, taken = TokenBucket(per_minute, 0.0), 0.0, 0
    for pause, tokens in events:
        now += pause
        wait_s = bucket.wait_s(tokens, now)
        assert bucket.wait_s(tokens, now + wait_s) <= 1e-6 * (1 + now)
        now += wait_s
        bucket.take(tokens, now)
        assert taken <= per_minute * (1 + now / 60) * (1 + 1e-9)
        taken += tokens
