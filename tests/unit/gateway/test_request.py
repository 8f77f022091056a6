"""The request that outlives its attempts, without a bus."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dualpath.blocks import BlockKeys, pack_keys, root_key
from dualpath.blocks.keys import unpack_tokens
from dualpath.gateway.request import PAGE_TOKENS, Request, done_with
from dualpath.wire.control import (
    AttemptOver,
    Ok,
    PromptScored,
    Refused,
    TokenAck,
    TokenEvent,
    TokenPage,
    TokenRequest,
)
from dualpath.wire.types import (
    Attempt,
    AttemptStats,
    FinishReason,
    Sampled,
    Sampling,
    TokenScores,
)

ROOT = root_key("model")
BLOCK = 4


def make(
    prompt: list[int], *, max_tokens: int = 8, max_attempts: int = 3, **wishes: object
) -> Request:
    keys = BlockKeys(ROOT, BLOCK)
    keys.extend(prompt)
    sampling = Sampling(max_tokens=max_tokens, seed=1, **wishes)  # type: ignore[arg-type]
    request = Request("r", list(prompt), sampling, keys, max_attempts)
    request.begin_attempt()
    return request


def event(
    request: Request,
    index: int,
    ids: list[int],
    finish: FinishReason | None = None,
    *,
    number: int | None = None,
) -> TokenEvent:
    attempt = Attempt("r", request.number if number is None else number)
    stats = AttemptStats(hit_tokens=100) if finish else None
    return TokenEvent(attempt, index, tuple(Sampled(token) for token in ids), finish, stats)


def over(request: Request, code: str = "transfer", *, retry: bool = True) -> AttemptOver:
    return AttemptOver(request.attempt, code, "why", retry)


def test_log_probabilities_that_do_not_fit_together_are_refused() -> None:
    request = make([1, 2, 3, 4], prompt_logprobs=True)
    four, eight = bytes(4), bytes(8)
    for scores in (
        TokenScores(0, b""),
        TokenScores(0, bytes(5)),
        TokenScores(1, four, four),
        TokenScores(1, four, eight, eight),
        TokenScores(0, four, four, four),
        TokenScores(-1, four),
    ):
        answer = request.take_scores(PromptScored(request.attempt, 1, scores))
        assert isinstance(answer, Refused), scores
    assert request.scores == []
    sound = TokenScores(2, four, eight, eight)
    assert request.take_scores(PromptScored(request.attempt, 1, sound)) == Ok()


def test_tokens_are_taken_in_order_and_once() -> None:
    request = make([1, 2])
    assert request.receive(event(request, 0, [5])).next_index == 1
    assert request.receive(event(request, 0, [5, 6])).next_index == 2
    assert [token.token_id for token in request.take()] == [5, 6]
    assert request.take() == []


def test_after_a_gap_nothing_is_taken_and_what_is_missing_is_asked_for() -> None:
    request = make([1, 2])
    ack = request.receive(event(request, 1, [6], "length"))
    assert (ack.next_index, ack.finished) == (0, False)
    assert request.take() == []
    assert request.finish is None


def test_the_finish_may_come_without_tokens_and_its_figures_are_kept() -> None:
    request = make([1, 2])
    request.receive(event(request, 0, [5]))
    ack = request.receive(event(request, 1, [], "length"))
    assert (ack.next_index, ack.finished) == (1, True)
    assert request.finish == "length"
    assert request.cached_tokens == 2


def test_events_of_another_attempt_are_dropped_and_forgotten_by_their_sender() -> None:
    request = make([1, 2])
    old = event(request, 0, [9, 9])
    request.lose(over(request))
    request.begin_attempt()
    assert request.receive(old) == done_with(old)
    assert request.take() == []
    assert request.receive(event(request, 0, [3], number=7)).finished


def test_the_next_attempt_prefills_what_was_generated() -> None:
    request = make([1, 2, 3], max_tokens=8)
    request.receive(event(request, 0, [4, 5]))
    assert request.lose(over(request))
    assert request.submit_due
    request.begin_attempt()
    submit = request.submission("g", 1, 2.5)
    keys = BlockKeys(ROOT, BLOCK)
    keys.extend([1, 2, 3, 4, 5])
    assert submit.keys == pack_keys(keys.keys)
    assert (submit.attempt.number, submit.prompt_tokens, submit.generated) == (2, 5, 2)
    assert (submit.root, submit.hit_blocks_estimate, submit.deadline_s) == (ROOT, 1, 2.5)


def test_word_of_an_older_or_lost_attempt_changes_nothing() -> None:
    request = make([1])
    word = over(request)
    assert request.lose(word)
    assert not request.lose(word)
    request.begin_attempt()
    assert not request.lose(word)
    assert request.failures == 1


def test_attempts_are_not_used_up_before_a_dead_node_is_known_to_be() -> None:
    request = make([1], max_attempts=5)
    node_lost_s, rests = 3.0, []
    while request.lost is None:
        request.lose(over(request))
        rests.append(request.rest_s(node_lost_s))
        request.begin_attempt()
        assert request.rest_s(node_lost_s) == 0
    assert rests[0] == 0, "most losses are the only one"
    assert sum(rests[:-1]) > node_lost_s


def test_a_preempted_request_does_not_rest() -> None:
    request = make([1], max_attempts=5)
    for code in ("transfer", "transfer", "preempted"):
        request.lose(over(request, code))
    request.begin_attempt()
    request.lose(over(request, "preempted"))
    assert request.rest_s(3.0) == 0


def test_losses_are_counted_preemptions_are_not() -> None:
    request = make([1], max_attempts=2)
    for _ in range(5):
        request.lose(over(request, "preempted"))
        request.begin_attempt()
    request.lose(over(request))
    request.begin_attempt()
    assert not request.over
    request.lose(over(request))
    assert request.lost is not None
    assert request.lost.code == "transfer"


def test_a_loss_without_retry_is_the_end() -> None:
    request = make([1])
    request.lose(over(request, retry=False))
    assert request.over
    assert not request.submit_due


def test_what_the_tokens_say_needs_no_other_attempt() -> None:
    full = make([1], max_tokens=2)
    full.receive(event(full, 0, [5, 6]))
    full.lose(over(full, retry=False))
    assert (full.finish, full.lost) == ("length", None)
    stopped = make([1], stop_ids=(7,))
    stopped.receive(event(stopped, 0, [7]))
    stopped.forgotten()
    assert stopped.finish == "stop"
    # As nodes see it: stop ids count from the token after min_tokens on.
    early = make([1], stop_ids=(7,), min_tokens=1)
    early.receive(event(early, 0, [7]))
    early.forgotten()
    assert early.finish is None


def test_pages_hand_out_prompt_and_generated_ids() -> None:
    request = make([1, 2, 3])
    request.receive(event(request, 0, [4, 5]))
    # Not part of this attempt's prompt yet.
    assert isinstance(request.page(TokenRequest(request.attempt, 0, 4)), Refused)
    old = request.attempt
    request.lose(over(request))
    request.begin_attempt()
    page = request.page(TokenRequest(request.attempt, 2, 5))
    assert isinstance(page, TokenPage)
    assert (page.start, unpack_tokens(page.token_ids)) == (2, [3, 4, 5])
    assert isinstance(request.page(TokenRequest(old, 0, 1)), Refused)
    for start, stop in ((-1, 2), (2, 2), (0, 6)):
        assert isinstance(request.page(TokenRequest(request.attempt, start, stop)), Refused)


def test_a_long_page_is_cut() -> None:
    request = make([7] * (PAGE_TOKENS + 5))
    page = request.page(TokenRequest(request.attempt, 3, PAGE_TOKENS + 5))
    assert isinstance(page, TokenPage)
    assert len(unpack_tokens(page.token_ids)) == PAGE_TOKENS


class Delivery(RuleBasedStateMachine):
    """Nodes that repeat, reorder and lose messages; attempts that end at any time. The client must get the
    tokens that an undisturbed run gives."""

    TOTAL = 12

    def __init__(self) -> None:
        super().__init__()
        self.request = make([1, 2, 3, 4, 5], max_tokens=self.TOTAL, max_attempts=10**6)
        self.got: list[int] = []
        self.sent: list[TokenEvent] = []

    @rule(start=st.integers(0, TOTAL), count=st.integers(0, 5))
    def speak(self, start: int, count: int) -> None:
        """Any part of the present attempt's stream, in any order."""
        start = max(start, self.request.submission("g", 0, 1.0).generated)
        stop = min(start + count, self.TOTAL)
        finish: FinishReason | None = "length" if stop == self.TOTAL else None
        self.sent.append(event(self.request, start, [100 + i for i in range(start, stop)], finish))
        self.deliver(-1)

    @precondition(lambda self: self.sent)
    @rule(which=st.integers(0, 30))
    def repeat(self, which: int) -> None:
        self.deliver(which % len(self.sent))

    def deliver(self, which: int) -> None:
        ack = self.request.receive(self.sent[which])
        current = self.sent[which].attempt == self.request.attempt
        if current and not ack.finished:
            assert ack.next_index == len(self.request.generated)

    @rule(code=st.sampled_from(["preempted", "transfer"]))
    def lose(self, code: str) -> None:
        self.request.lose(over(self.request, code))

    @rule()
    def restart(self) -> None:
        self.request.forgotten()

    @precondition(lambda self: self.request.submit_due)
    @rule()
    def submit(self) -> None:
        self.request.begin_attempt()
        submit = self.request.submission("g", 0, 1.0)
        assert submit.prompt_tokens == 5 + submit.generated
        assert len(self.request.keys.keys) == submit.prompt_tokens // BLOCK

    @rule()
    def take(self) -> None:
        self.got += [token.token_id for token in self.request.take()]

    @invariant()
    def the_client_has_a_prefix_of_the_undisturbed_answer(self) -> None:
        assert self.got == [100 + i for i in range(len(self.got))]
        if self.request.finish is not None:
            assert len(self.request.generated) == self.TOTAL
            assert self.request.finish == "length"
            assert not self.request.submit_due


TestDelivery = Delivery.TestCase
TestDelivery.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


# ── a client that has all that it wants ────────────────────────────────────────────────────────────
def test_after_a_stop_string_nothing_more_is_taken_and_the_node_is_told_to_stop() -> None:
    request = make([1, 2])
    request.receive(event(request, 0, [5, 6, 7]))
    request.take()
    request.stop_after(2)
    assert request.ack() == TokenAck(request.attempt, 3, stop=True)
    assert request.receive(event(request, 3, [8])) == TokenAck(request.attempt, 4, stop=True)
    assert [token.token_id for token in request.generated] == [5, 6]
    assert not request.over
    ack = request.receive(event(request, 4, [9], "length"))
    assert (ack.finished, ack.stop, request.finish) == (True, False, "stop")
    assert request.over
    assert request.take() == []


def test_a_stopped_request_that_loses_its_attempt_is_finished() -> None:
    for end in ("lose", "forget"):
        request = make([1, 2], max_attempts=1)
        request.receive(event(request, 0, [5, 6]))
        request.take()
        request.stop_after(1)
        if end == "lose":
            request.lose(over(request, retry=False))
        else:
            request.forgotten()
        assert (request.finish, request.lost, request.submit_due) == ("stop", None, False)
        assert request.over


def test_a_client_may_stop_waiting_for_the_cluster_which_must_then_be_told() -> None:
    request = make([1, 2])
    request.receive(event(request, 0, [5, 6]))
    request.take()
    request.stop_after(1)
    request.stop_waiting()
    assert request.finish == "stop"
    assert not request.over


def test_a_stop_string_in_the_last_tokens_is_the_reason_of_the_end() -> None:
    request = make([1, 2])
    request.receive(event(request, 0, [5, 6, 7], "length"))
    request.take()
    request.stop_after(2)
    assert (request.finish, request.over, len(request.generated)) == ("stop", True, 2)


def test_a_stop_string_found_between_two_attempts_needs_no_other() -> None:
    request = make([1, 2])
    request.receive(event(request, 0, [5, 6]))
    request.lose(over(request))
    request.take()
    request.stop_after(2)
    assert (request.finish, request.over, request.submit_due) == ("stop", True, False)


def test_cached_tokens_are_those_that_the_first_attempt_read() -> None:
    """A later one reads what the first has computed."""
    request = make([1, 2, 3])
    first = TokenEvent(request.attempt, 0, (Sampled(5),), None, AttemptStats(hit_tokens=1))
    request.receive(first)
    assert request.cached_tokens == 1
    request.lose(over(request))
    request.begin_attempt()
    request.receive(event(request, 1, [6], "length"))
    assert request.stats.hit_tokens == 100
    assert request.cached_tokens == 1
