"""What a model is, read from its files: limits, geometry, fingerprint, and refusals in sentences."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dualpath.blocks import KVGeometry, KVPart
from dualpath.model.api import ModelError
from dualpath.model.fingerprint import FileHashes, fingerprint
from dualpath.model.locate import model_directory, resolve_dtype
from dualpath.model.prepare import prepare_model
from dualpath.model.spec import load_spec
from dualpath.model.tiny import CONFIG, write_tiny
from dualpath.settings import Settings, SyntheticProfile


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    directory = tmp_path / "some-model"
    directory.mkdir()
    write_tiny(directory)
    return directory


def spec_settings(checkpoint: Path, **changes: Any) -> Settings:
    given: dict[str, Any] = {
        "model": str(checkpoint),
        "home": checkpoint.parent / "home",
        "dtype": "float32",
    }
    return Settings(**(given | changes))


def rewrite(checkpoint: Path, name: str = "config.json", **changes: Any) -> None:
    path = checkpoint / name
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def test_checkpoint_directory(checkpoint: Path) -> None:
    spec = load_spec(spec_settings(checkpoint))
    assert (spec.name, spec.kind, spec.family, spec.dtype) == (
        "some-model",
        "torch",
        "llama",
        "float32",
    )
    assert spec.directory == checkpoint
    assert (spec.vocab_size, spec.eos_ids, spec.max_context) == (512, (257,), 4096)
    row = (KVPart("k", 2 * 16 * 4), KVPart("v", 2 * 16 * 4))
    assert spec.geometry == KVGeometry(64, (row,) * 4)


def test_bfloat16_halves_the_rows_and_changes_the_fingerprint(checkpoint: Path) -> None:
    whole = load_spec(spec_settings(checkpoint))
    half = load_spec(spec_settings(checkpoint, dtype="bfloat16"))
    assert half.geometry.token_bytes * 2 == whole.geometry.token_bytes
    assert half.fingerprint != whole.fingerprint


def test_old_configs_without_head_dim_and_kv_heads(checkpoint: Path) -> None:
    rewrite(checkpoint, head_dim=None, num_key_value_heads=None)
    spec = load_spec(spec_settings(checkpoint))
    assert spec.geometry.row_bytes[0] == 2 * 4 * 16 * 4


def test_fingerprint_follows_weights_and_config_but_not_bookkeeping(checkpoint: Path) -> None:
    settings = spec_settings(checkpoint)
    first = load_spec(settings).fingerprint
    rewrite(checkpoint, transformers_version="9.9", torch_dtype="float16", _name_or_path="x")
    assert load_spec(settings).fingerprint == first
    rewrite(checkpoint, rms_norm_eps=1e-6)
    changed = load_spec(settings).fingerprint
    assert changed != first
    weights = checkpoint / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert load_spec(settings).fingerprint not in (first, changed)
    assert load_spec(spec_settings(checkpoint, block_tokens=32)).fingerprint != changed


def test_fingerprints_are_golden() -> None:
    """Another value here orphans everybody's stored KV-Cache: raise LAYOUT_VERSION on purpose only."""
    geometry = KVGeometry(64, ((KVPart("k", 8), KVPart("v", 8)), (KVPart("latent", 24),)))
    assert (
        fingerprint(
            weights={"a.safetensors": "00", "b.safetensors": "ff"},
            config={"rope_theta": 10000.0, "hidden_size": 64, "note": "é"},
            dtype="float32",
            geometry=geometry,
        )
        == "434d3dec40ef7c81177138e0fd570f4c"
    )
    assert load_spec(Settings(model="synthetic")).fingerprint == "60f9744f306c5cffd688b5f4005dde24"


def test_tiny_is_the_same_everywhere(checkpoint: Path) -> None:
    """The weights come from a frozen generator, so its answers can be compared across machines."""
    assert load_spec(spec_settings(checkpoint)).fingerprint == "983d3dd8ed41a6aa2304a0d66f8d0be3"


def test_synthetic_needs_no_files(tmp_path: Path) -> None:
    profile = SyntheticProfile(layers=3, row_bytes=33, vocab_size=1000, max_context=500)
    spec = load_spec(Settings(model="synthetic", synthetic=profile, home=tmp_path, max_context=400))
    assert spec.kind == "synthetic"
    assert spec.geometry.row_bytes == (33, 33, 33)
    assert (spec.vocab_size, spec.max_context, spec.eos_ids) == (1000, 400, (257,))


def test_speed_of_a_synthetic_profile_does_not_change_its_kv() -> None:
    slow = SyntheticProfile(forward_s=1.0)
    assert (
        load_spec(Settings(model="synthetic", synthetic=slow)).fingerprint
        == load_spec(Settings(model="synthetic")).fingerprint
    )


def test_generation_config_names_several_ends(checkpoint: Path) -> None:
    rewrite(checkpoint, "generation_config.json", eos_token_id=[5, 7])
    assert load_spec(spec_settings(checkpoint)).eos_ids == (5, 7)
    (checkpoint / "generation_config.json").unlink()
    assert load_spec(spec_settings(checkpoint)).eos_ids == (257,)
    rewrite(checkpoint, eos_token_id=None)
    with pytest.raises(ModelError, match="add the id that ends an answer"):
        load_spec(spec_settings(checkpoint))


def test_sharded_weights(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").rename(checkpoint / "model-1.safetensors")
    (checkpoint / "model-2.safetensors").write_bytes(b"rest")
    index = checkpoint / "model.safetensors.index.json"
    index.write_text(
        json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}})
    )
    load_spec(spec_settings(checkpoint))
    (checkpoint / "model-2.safetensors").unlink()
    with pytest.raises(ModelError, match=r"model-2\.safetensors is missing"):
        load_spec(spec_settings(checkpoint))
    index.write_text(json.dumps({"weight_map": {"a": "../elsewhere.safetensors"}}))
    with pytest.raises(ModelError, match="not a file beside it"):
        load_spec(spec_settings(checkpoint))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": None}, "no model_type"),
        ({"model_type": "gpt2"}, r"'gpt2' is not supported; supported: .*llama"),
        ({"quantization_config": {"quant_method": "gptq"}}, "unquantized"),
        ({"rope_parameters": {"rope_type": "dynamic"}}, "dynamic"),
        ({"rope_parameters": None, "rope_scaling": {"type": "longrope"}}, "longrope"),
    ],
)
def test_refused_configs(checkpoint: Path, changes: dict[str, Any], said: str) -> None:
    rewrite(checkpoint, **changes)
    with pytest.raises(ModelError, match=said):
        load_spec(spec_settings(checkpoint))


def test_refused_directories(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no model directory"):
        load_spec(spec_settings(tmp_path / "nothing"))
    with pytest.raises(ModelError, match=r"give smollm2, .*checkpoint$"):
        load_spec(spec_settings(tmp_path / "nothing" / "there"))
    with pytest.raises(ModelError, match=r"hf download Qwen/Qwen3-0\.6B --local-dir Qwen3-0\.6B$"):
        load_spec(Settings(model="Qwen/Qwen3-0.6B", home=tmp_path))
    with pytest.raises(ModelError, match="has not been prepared"):
        load_spec(Settings(model="tiny", home=tmp_path))
    (checkpoint / "model.safetensors").rename(checkpoint / "pytorch_model.bin")
    with pytest.raises(ModelError, match="pickled weights"):
        load_spec(spec_settings(checkpoint))
    (checkpoint / "pytorch_model.bin").unlink()
    with pytest.raises(ModelError, match="no weights in"):
        load_spec(spec_settings(checkpoint))
    (checkpoint / "config.json").write_text("{")
    with pytest.raises(ModelError, match="no JSON"):
        load_spec(spec_settings(checkpoint))
    (checkpoint / "config.json").unlink()
    with pytest.raises(ModelError, match=r"config\.json is missing"):
        load_spec(spec_settings(checkpoint))


def test_context_beyond_the_model_is_refused(checkpoint: Path) -> None:
    assert load_spec(spec_settings(checkpoint, max_context=100)).max_context == 100
    with pytest.raises(ModelError, match="supports 4096"):
        load_spec(spec_settings(checkpoint, max_context=4097))


def test_hashes_are_remembered_until_the_file_changes(tmp_path: Path) -> None:
    file, cache = tmp_path / "weights", tmp_path / "deep" / "hashes.json"
    file.write_bytes(b"one")
    first = FileHashes(cache).of(file)
    remembered = json.loads(cache.read_text())
    [(name, (stamp, digest))] = remembered.items()
    assert digest == first
    cache.write_text(json.dumps({name: [stamp, "remembered"]}))
    assert FileHashes(cache).of(file) == "remembered"
    file.write_bytes(b"other")
    assert FileHashes(cache).of(file) not in (first, "remembered")
    for damaged in ("{", "[]", json.dumps({name: 3})):
        cache.write_text(damaged)
        file.write_bytes(b"one")
        assert FileHashes(cache).of(file) == first


def test_dtype_is_resolved_without_the_device(tmp_path: Path) -> None:
    assert resolve_dtype(Settings(model="smollm2", device="cuda")) == "bfloat16"
    assert resolve_dtype(Settings(model="tiny")) == "float32"
    assert resolve_dtype(Settings(model="tiny", dtype="bfloat16")) == "bfloat16"
    chosen = resolve_dtype(Settings(model="smollm2", device="cpu"))
    assert model_directory(Settings(model="smollm2", device="cpu", home=tmp_path)).name == (
        f"smollm2-{chosen}"
    )


def test_neither_torch_nor_transformers_is_loaded(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from dualpath.settings import Settings\n"
        "from dualpath.model.prepare import prepare_model\n"
        "from dualpath.model.spec import load_spec\n"
        "import dualpath.model.backends\n"
        "settings = Settings(model='tiny', home=Path(sys.argv[1]))\n"
        "prepare_model(settings, print)\n"
        "load_spec(settings)\n"
        "print(sorted({'torch', 'transformers'} & set(sys.modules)))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines()[-1] == "[]"


def test_prepared_tiny_is_described(tmp_path: Path) -> None:
    settings = Settings(model="tiny", home=tmp_path, served_name="toy")
    prepare_model(settings, lambda line: None)
    spec = load_spec(settings)
    assert (spec.name, spec.vocab_size) == ("toy", CONFIG["vocab_size"])
