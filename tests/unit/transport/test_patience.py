from __future__ import annotations

from dualpath.transport.patience import Patience


def test_it_ends_only_once_nothing_changed_for_the_whole_limit() -> None:
    patience = Patience(5.0)
    assert not patience.exhausted(0.0, owes=True, signs=1)
    assert not patience.exhausted(5.0, owes=True, signs=1)
    assert patience.exhausted(5.1, owes=True, signs=1)


def test_every_sign_begins_it_anew() -> None:
    patience = Patience(5.0)
    assert not any(patience.exhausted(4.0 * n, owes=True, signs=n) for n in range(10))


def test_nobody_who_owes_nothing_exhausts_it() -> None:
    patience = Patience(5.0)
    assert not any(patience.exhausted(4.0 * n, owes=False, signs=0) for n in range(10))
    # What is owed only now has all of the time.
    assert not patience.exhausted(41.0, owes=True, signs=0)
    assert not patience.exhausted(46.0, owes=True, signs=0)
    assert patience.exhausted(46.1, owes=True, signs=0)


def test_time_that_was_not_the_peers_does_not_count() -> None:
    patience = Patience(5.0)
    assert not patience.exhausted(0.0, owes=True, signs=0)
    patience.renew()
    assert not patience.exhausted(100.0, owes=True, signs=0)
