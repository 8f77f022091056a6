"""lm-evaluation-harness, unmodified, from its own environment: `LM_EVAL=VENV/bin/python pytest -m slow FILE`."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from tests.support.cluster import LocalCluster
from tests.support.reference import reference_greedy, reference_logprobs

from dualpath.model.text import Tokenizer
from dualpath.model.tiny import write_tiny

pytestmark = pytest.mark.slow

HARNESS = """
import json, sys
from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI

url, model, tokenizer, pairs = *sys.argv[1:4], json.loads(sys.argv[4])
lm = LocalCompletionsAPI(
    base_url=url + "/completions", model=model, tokenizer=tokenizer, tokenizer_backend="huggingface"
)
asked = [Instance("loglikelihood", {}, tuple(pair), n) for n, pair in enumerate(pairs)]
print("RESULT", json.dumps(lm.loglikelihood(asked, disable_tqdm=True)))
"""


def test_its_log_likelihoods_are_those_of_transformers(tmp_path: Path) -> None:
    command = os.environ.get("LM_EVAL")
    if command is None:
        pytest.skip("no Python with lm-eval: name it in the variable LM_EVAL")
    model = tmp_path / "tiny"
    model.mkdir()
    write_tiny(model)
    tokenizer = Tokenizer.load(model)
    # The harness counts blanks at its end to what follows.
    context = tokenizer.encode(("The question is hard. " * 12).strip(), add_special_tokens=False)
    greedy = tokenizer.decode(reference_greedy(model, context, 4))
    pairs = [[tokenizer.decode(context), end] for end in (" yes", " no, it is not", greedy)]
    cluster = LocalCluster(tmp_path / "home", model="tiny", dtype="float32", chunk_tokens=100)
    try:
        script = [command, "-c", HARNESS, cluster.base_url, cluster.model, str(model)]
        ended = subprocess.run(
            [*script, json.dumps(pairs)], capture_output=True, text=True, check=False
        )
    finally:
        cluster.stop()
    assert "RESULT " in ended.stdout, ended.stderr[-4000:]
    found = json.loads(ended.stdout.partition("RESULT ")[2])
    for (before, after), (logprob, is_greedy) in zip(pairs, found, strict=True):
        start = len(tokenizer.encode(before, add_special_tokens=False))
        ids = tokenizer.encode(before + after, add_special_tokens=False)
        rows = list(enumerate(reference_logprobs(model, ids)))[start - 1 :]
        expected = [(row[ids[at + 1]], max(row)) for at, row in rows]
        assert logprob == pytest.approx(sum(chosen for chosen, _ in expected), abs=1e-3)
        assert is_greedy == all(chosen == best for chosen, best in expected)
