"""Values that several messages carry."""

from __future__ import annotations

from typing import Literal

import msgspec

Role = Literal["prefill", "decode"]
ReadPath = Literal["prefill", "decode", "split", "none"]
FinishReason = Literal["stop", "length"]


class Value(msgspec.Struct, frozen=True):
    """Base of what is only ever part of a message."""


class Attempt(Value, frozen=True):
    """Which try at which request. What belongs to an older attempt is dropped."""

    request_id: str
    number: int

    def __str__(self) -> str:
        return f"{self.request_id}#{self.number}"


class Address(Value, frozen=True):
    """Where an engine's or node's transport endpoint listens, and which life of it is meant."""

    endpoint_id: str
    incarnation: str
    host: str
    port: int


class Sampling(Value, frozen=True):
    """How tokens are chosen: a pure function of this, the ids before the token, and the logits.

    `seed` is always set (the gateway draws one where the client did not), so that a second attempt
    samples the same tokens. `temperature` 0 is greedy; `top_k` 0, `top_p` 1, `min_p` 0 and the penalties' 0, 0 and 1
    are off. `top_logprobs` None: no log-probabilities; n: that of the chosen token and of the n best.
    """

    max_tokens: int
    seed: int
    min_tokens: int = 0
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    stop_ids: tuple[int, ...] = ()
    """Ids that end generation: the model's EOS (unless ignored) and the client's stop ids."""
    top_logprobs: int | None = None
    min_p: float = 0.0
    """Tokens less probable than so many times the best are left out."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    """Taken off a token's logit once if it was generated before, and for each time that it was."""
    repetition_penalty: float = 1.0
    """Divides the logit (multiplies a negative one) of tokens of the prompt and of those generated."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(id, what is added to its logit)."""
    grammar: str = ""
    """What the output must follow (`dualpath.model.grammar`); empty: nothing."""
    prompt_logprobs: bool = False
    """The log-probabilities of the prompt's tokens are wanted as well (`top_logprobs` says how many alternatives). A
    prompt that is read has none, so all of it is computed."""

    @property
    def penalizes_prompt(self) -> bool:
        """Whether the prompt's ids matter."""
        return self.repetition_penalty != 1

    @property
    def penalizes(self) -> bool:
        """Whether ids before a token change its logit."""
        return bool(self.presence_penalty or self.frequency_penalty) or self.penalizes_prompt


class Sampled(Value, frozen=True):
    """One generated token; `top` holds (id, log-probability) of the best, best first."""

    token_id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class TokenScores(Value, frozen=True):
    """Log-probabilities of n given tokens, each after those before it, with `top` alternatives a token, best first.
    Packed, little-endian: `chosen` float32 [n]; `ids` int32 and `best` float32 [n, top]."""

    top: int
    chosen: bytes
    ids: bytes = b""
    best: bytes = b""

    def __len__(self) -> int:
        return len(self.chosen) // 4

    @property
    def sound(self) -> bool:
        """Whether it has a token, and all arrays are as long as they should be."""
        alternatives = self.top * len(self.chosen)
        return (
            len(self) > 0
            and len(self.chosen) % 4 == 0
            and len(self.ids) == len(self.best) == alternatives
        )


class AttemptStats(Value, frozen=True):
    """How an attempt was served (the Explain object and the usage figures)."""

    prefill_node: str = ""
    decode_node: str = ""
    read_path: ReadPath = "none"
    hit_tokens: int = 0
    prefill_bytes_read: int = 0
    decode_bytes_read: int = 0
    prefill_hot_tokens: int = 0
    decode_hot_tokens: int = 0
    """Of the hits, tokens that the side had in its memory (the hot tier): nothing was read for them."""
    timings_s: dict[str, float] = {}
    """Phase name (`Phase.value`) → seconds spent in it. Besides, of the way to the first token: `queued`, of which
    `wait_decode`, `wait_slots`, `wait_prefill`; of `loading`, `acquire` (room in the PE buffer); of `prefill`,
    `first` (up to the first token)."""
    prefill_tokens: int = 0
    """Hit tokens that came over the PE read path, and over the DE read path."""
    decode_tokens: int = 0


class EngineInfo(Value, frozen=True):
    """An engine as its node registers it. `index` counts within the node."""

    index: int
    address: Address
    hbm_tokens: int


class NodeSpeed(Value, frozen=True):
    """How fast a node reads from storage, and each of its engines computes, as it was measured; 0: not known."""

    read_tokens_per_s: float = 0.0
    compute_tokens_per_s: float = 0.0


class EngineLoad(Value, frozen=True):
    """Load of one engine (paper §5): unfinished requests, and their tokens in total."""

    index: int
    seq: int
    tok: int
    hbm_free_tokens: int


class PoolUse(Value, frozen=True):
    """Use of one pool of the process; units are in the name (`de_slots`, `hbm_bytes_0`, …). `total` 0: no bound
    of its own. Idle, all are back at zero; `clean` units are free, and hold what may be asked for again."""

    name: str
    used: int
    total: int
    waiting: int = 0
    clean: int = 0


WAIT_BOUNDS_S = (
    0.0, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 1.0, 5.0,
)  # fmt: skip
"""Upper ends of the classes of a chunk's wait for its turn; the first are those granted at once."""


class NicUse(Value, frozen=True, omit_defaults=True):
    """One lane of a NIC in one direction, `tx` or `rx`; bytes are of payload, since start.

    `contended_bytes` were granted while another lane waited too. `waiting` chunks and `waiting_bytes` are
    queued now. `share` is the lane's part of what the direction moved in the last second or a little
    more. `waits` counts chunks by WAIT_BOUNDS_S, and those beyond; `wait_s` is their sum. The direction has
    `limit_bytes_per_s`, all lanes together; 0: it is not emulated. What is 0 is left out of messages.
    """

    nic: str
    lane: str
    direction: str
    nbytes: int
    contended_bytes: int = 0
    waiting: int = 0
    waiting_bytes: int = 0
    share: float = 0.0
    waits: tuple[int, ...] = ()
    wait_s: float = 0.0
    limit_bytes_per_s: float = 0.0


class NodeStatus(Value, frozen=True):
    """What `dualpath status` shows of one process."""

    pools: tuple[PoolUse, ...] = ()
    nics: tuple[NicUse, ...] = ()
    read_q_tokens: int = 0
    counters: dict[str, int] = {}
