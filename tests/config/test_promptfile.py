"""Files with a prompt to warm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mlxceld.config.promptfile import PromptFileError, read_prompt_file

SYSTEM = [{"role": "system", "content": "Be brief.\n"}]


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("p.txt", "Be brief.\n", {"messages": SYSTEM}),
        ("p.txt", "[not json", {"messages": [{"role": "system", "content": "[not json"}]}),
        ("p.json", json.dumps(SYSTEM), {"messages": SYSTEM}),
        (
            "p.json",
            json.dumps(
                {"messages": SYSTEM, "tools": [], "model": "m", "stream": True, "session": "s"}
            ),
            {"messages": SYSTEM, "tools": [], "model": "m", "stream": True, "session": "s"},
        ),
        ("p", json.dumps({"prompt": "Once", "session": None}), {"prompt": "Once"}),
    ],
)
def test_a_text_is_a_system_prompt_and_json_a_conversation(
    tmp_path: Path, name: str, text: str, found: object
) -> None:
    file = tmp_path / name
    file.write_text(text)
    assert read_prompt_file(file) == found


@pytest.mark.parametrize(
    ("name", "raw", "says"),
    [
        ("p.txt", b" \n", "is empty"),
        ("p.txt", b"\xff\xfe", "not UTF-8"),
        ("p.json", b"{", "not JSON"),
        ("p.json", b'{"model": "m"}', "with messages, input or prompt"),
        ("p.json", b'"text"', "with messages, input or prompt"),
    ],
)
def test_a_file_that_holds_no_prompt_is_named(
    tmp_path: Path, name: str, raw: bytes, says: str
) -> None:
    file = tmp_path / name
    file.write_bytes(raw)
    with pytest.raises(PromptFileError, match=says) as caught:
        read_prompt_file(file)
    assert str(file) in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PromptFileError, match="No such file"):
        read_prompt_file(tmp_path / "absent")
