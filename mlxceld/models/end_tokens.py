"""Which tokens end an answer: all that the model's files name, and the one its template writes."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlxceld.models.errors import ChatTemplateError

if TYPE_CHECKING:
    from mlxceld.models.chat import ChatRenderer

log = logging.getLogger(__name__)

_REPLY = "qx7reply"


def named_end_ids(folder: Path, config: Mapping[str, Any]) -> set[int]:
    """The ids that ``config.json`` and ``generation_config.json`` name, 0 among them.

    The two often differ: one has the end of a text, the other also that of a turn.
    """
    found = _ids(config.get("eos_token_id"))
    for name in ("config.json", "generation_config.json"):
        try:
            read = json.loads((folder / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        for part in (read, read.get("text_config")) if isinstance(read, dict) else ():
            if isinstance(part, dict):
                found |= _ids(part.get("eos_token_id"))
    return found


def template_end_id(renderer: ChatRenderer, tokenizer: Any) -> int | None:
    """The control token that the chat template writes after a reply of the assistant.

    None where it writes none, or cannot render one. A model was trained to end its turns with it,
    whatever its files say.
    """
    if not renderer.available:
        return None
    messages = [{"role": "user", "content": "u"}, {"role": "assistant", "content": _REPLY}]
    try:
        text = renderer.render(messages, add_generation_prompt=False).text
    except ChatTemplateError as error:
        log.debug("the chat template shows no end of a turn: %s", error)
        return None
    after = text.rpartition(_REPLY)[2].lstrip()
    special = {
        str(entry.content): int(token)
        for token, entry in tokenizer.added_tokens_decoder.items()
        if entry.special or re.fullmatch("<\\|.*\\|>|<\uff5c.*\uff5c>", str(entry.content))
    }
    found = max((name for name in special if after.startswith(name)), key=len, default=None)
    return None if found is None else special[found]


def _ids(value: Any) -> set[int]:
    values = value if isinstance(value, list) else [value]
    return {one for one in values if isinstance(one, int) and not isinstance(one, bool)}
