"""Models from the Hugging Face hub, kept in the hub's own cache folder."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

from mlxceld.models.errors import ModelError, one_line
from mlxceld.models.folder import check_folder
from mlxceld.models.progress import Progress

_PATTERNS = (
    "*.json",
    "model*.safetensors",
    "tokenizer.model",
    "*.tiktoken",
    "tiktoken.model",
    "*.txt",
    "*.jsonl",
    "*.jinja",
)
"""What mlx-lm reads of a model; never code."""


def hub_model(name: str, progress: Progress) -> Path:
    """The folder of hub model ``name`` (organisation/model), downloaded if it is not whole yet.

    A whole copy is used without asking the hub, so that a daemon starts without a network. Raises
    ModelError that names the folder looked in where there is no copy and none can be had.
    """
    # Imported here: it takes long, and local models need none of it.
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    cache = Path(constants.HF_HUB_CACHE)
    present = _cached(name)
    if present is not None:
        progress(f"using the copy of {name} in {cache}")
        return present
    looked = f"no whole copy in {cache}"
    if constants.HF_HUB_OFFLINE:
        raise ModelError(
            f"model {name}: {looked}, and HF_HUB_OFFLINE forbids to download it; unset it once,"
            " or give a local folder or .gguf file"
        )
    progress(f"downloading {name} into {cache}")
    try:
        path = snapshot_download(
            name, allow_patterns=list(_PATTERNS), tqdm_class=_progress_bar(name, progress)
        )
    except GatedRepoError as error:
        raise ModelError(
            f"model {name}: {looked}, and the hub asks for consent: accept the model's terms on its"
            " page and log in with `hf auth login`"
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelError(
            f"model {name}: {looked}, and the hub knows no such model (or it is private: log in"
            " with `hf auth login`)"
        ) from error
    except LocalEntryNotFoundError as error:
        raise ModelError(
            f"model {name}: {looked}, and the hub cannot be reached; connect to the network, or"
            " give a local folder or .gguf file"
        ) from error
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise ModelError(f"model {name}: {looked}; download failed: {one_line(error)}") from error
    return Path(path)


def _cached(name: str) -> Path | None:
    """The newest local copy, if nothing of it is missing."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        path = Path(snapshot_download(name, allow_patterns=list(_PATTERNS), local_files_only=True))
        check_folder(path)
    except HFValidationError as error:
        raise ModelError(f"model {name}: not a hub id: {one_line(error)}") from error
    except (LocalEntryNotFoundError, ModelError, OSError):
        return None
    return path


def _progress_bar(name: str, progress: Progress) -> Any:
    """The bar that the download draws: the usual one on a terminal, else lines for the log."""
    from huggingface_hub.utils.tqdm import tqdm

    if sys.stderr.isatty():
        return tqdm

    lock = threading.Lock()

    class LogLines(tqdm):  # type: ignore[type-arg, misc, unused-ignore]
        """Reports each tenth of the bytes, and draws nothing."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs["disable"] = False
            kwargs["file"] = _Nowhere()
            self._reported = 0
            super().__init__(*args, **kwargs)  # type: ignore[no-untyped-call, unused-ignore]

        def update(self, n: float | None = 1) -> bool | None:
            drawn: bool | None = super().update(n)
            total = self.total or 0
            if self.unit == "B" and total:
                with lock:
                    tenth = int(10 * self.n // total)
                    if tenth > self._reported:
                        self._reported = tenth
                        size = f"{self.n / 2**20:.0f} of {total / 2**20:.0f} MiB"
                        progress(f"downloading {name}: {10 * tenth}% ({size})")
            return drawn

    return LogLines


class _Nowhere:
    """A file that keeps nothing."""

    def write(self, text: str) -> int:
        """Take and forget the text."""
        return len(text)

    def flush(self) -> None:
        """Nothing is held back."""
