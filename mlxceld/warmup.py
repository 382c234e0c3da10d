"""Prefilling the prompts of ``warm_files`` once the daemon serves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mlxceld.api.errors import ApiError
from mlxceld.config.promptfile import PromptFileError, read_prompt_file
from mlxceld.engine.errors import EngineError
from mlxceld.engine.warming import WarmError, warm, warm_request
from mlxceld.prompt_cache.reports import PinError

if TYPE_CHECKING:
    from mlxceld.api.prompts import Prompts
    from mlxceld.engine.client import EngineClient

log = logging.getLogger(__name__)


async def warm_files(engine: EngineClient, prompts: Prompts, files: Sequence[Path]) -> int:
    """Prefill and pin each file's prompt, one after another; returns how many were kept.

    One that fails is logged by name, and the others go on.
    """
    kept = 0
    for number, file in enumerate(files):
        try:
            body = await asyncio.to_thread(read_prompt_file, file)
            session = body.pop("session", None)
            prompt = await prompts.to_keep(body)
            request = warm_request(
                f"warm-file-{number}",
                prompt.tokens,
                session=session or prompt.session,
                template_signature=prompt.signature,
                boundaries=prompt.boundaries,
            )
            done = await warm(engine, request, kept_tokens=prompt.kept_tokens, pin=True)
        except (PromptFileError, ApiError, WarmError, PinError, EngineError) as error:
            log.warning("warm_files: %s: %s", file, error)
            continue
        kept += 1
        log.info("warm_files: %s: %d tokens are kept, pinned as %s", file, done.tokens, done.digest)
    return kept
