"""Turn a GGUF file into a checkpoint directory. Loads torch: run it as a process of its own.

`python -m dualpath.model.convert FILE.gguf DTYPE DIRECTORY` prints one line per step.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM


def convert(source: Path, dtype: str, target: Path) -> None:
    """Write `source`, dequantized and in `dtype`, into the existing directory `target`."""
    print(f"reading {source.name}", flush=True)
    read = LlamaForCausalLM.from_pretrained(
        source.parent, gguf_file=source.name, dtype=torch.float32, local_files_only=True
    )
    # The model as read refuses to be saved: its quantization config cannot be serialized.
    fields = read.config.to_dict()
    fields.pop("quantization_config", None)
    config = LlamaConfig(**fields)
    model = LlamaForCausalLM(config)  # type: ignore[no-untyped-call]
    model.load_state_dict(read.state_dict())
    model.generation_config = read.generation_config
    print(f"writing weights as {dtype}", flush=True)
    model.to(getattr(torch, dtype)).save_pretrained(target)
    tokenizer = AutoTokenizer.from_pretrained(
        source.parent, gguf_file=source.name, local_files_only=True
    )
    tokenizer.save_pretrained(target)
    _split_digits(target / "tokenizer.json")
    generation = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    (target / "generation_config.json").write_text(json.dumps(generation, indent=1) + "\n")


def _split_digits(path: Path) -> None:
    """SmolLM2 takes every digit for itself before it splits words, which is lost in reading the GGUF: the
    numbers come out the same, the spaces before them do not."""
    content = json.loads(path.read_text(encoding="utf-8"))
    digits = {"type": "Digits", "individual_digits": True}
    content["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [digits, content["pre_tokenizer"]],
    }
    path.write_text(json.dumps(content, ensure_ascii=False, indent=2), encoding="utf-8")


if __name__ == "__main__":
    convert(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
