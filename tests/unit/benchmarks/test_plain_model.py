"""The reference computes what it is taken for: a padded batch goes on as its rows would alone."""

from __future__ import annotations

from pathlib import Path

from benchmarks.plain_model import PlainModel

from dualpath.model.prepare import prepare_model
from dualpath.model.spec import load_spec
from dualpath.settings import load_settings

PROMPTS = [[40 + 3 * i % 150 for i in range(n)] for n in (5, 17, 9)]


def test_a_padded_batch_gives_the_tokens_of_its_rows_alone(tmp_path: Path) -> None:
    settings = load_settings(model="tiny", home=tmp_path, device="cpu")
    prepare_model(settings, print)
    model = PlainModel(load_spec(settings))
    alone = []
    for prompt in PROMPTS:
        model.prefill([prompt])
        alone.append([model.step()[0] for _ in range(6)])
    model.prefill(PROMPTS)
    together = [model.step() for _ in range(6)]
    assert [list(row) for row in zip(*together, strict=True)] == alone
