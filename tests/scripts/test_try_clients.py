"""The script that runs clients, held to the page that says which were run."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import mlx.core as mx
import pytest
from mlx_lm import load

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "clients"))

import run as try_clients  # noqa: E402
from scripted_daemon import TEMPLATES  # noqa: E402
from scripted_model import END, HYBRID, PAGEABLE, write_scripted_model  # noqa: E402
from verdict import Verdict  # noqa: E402

PAGE = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")


CASES = (ROOT / "scripts" / "clients" / "python_cases.py").read_text(encoding="utf-8")
DISTRIBUTIONS = sorted(set(re.findall(r'^@case\("([\w-]+)", ', CASES, re.MULTILINE)))
TABLE = [row.split("|")[1].strip() for row in PAGE.splitlines() if re.match(r"\| .* \| \d", row)]
CALL = '<tool_call>\n{"name": "f", "arguments": {"city": "Paris"}}\n</tool_call>'


@pytest.mark.parametrize("name", [n for n in try_clients.CLIENTS if "Python" not in n])
def test_each_client_has_a_row_on_the_page(name: str) -> None:
    assert any(row.startswith(f"{name} (`") for row in TABLE)


def test_the_python_clients_on_the_page_are_those_that_are_run() -> None:
    rows = [row for row in TABLE if row.startswith("`")]
    assert sorted(re.findall(r"`([\w-]+)`", " ".join(rows))) == DISTRIBUTIONS


@pytest.mark.parametrize("family", [PAGEABLE, HYBRID])
@pytest.mark.parametrize(("said", "answer"), [("Say hello", "Done."), ("Use the tool", CALL)])
def test_a_scripted_model_is_certain_of_its_answer(
    tmp_path: Path, family: str, said: str, answer: str
) -> None:
    script = {"": "Done.", " tool": CALL}
    template = TEMPLATES["chatml"].read_text()
    folder = write_scripted_model(tmp_path, script, family=family, chat_template=template)
    model, tokenizer = load(str(folder))[:2]
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": said}], add_generation_prompt=True
    )
    written = tokenizer.encode(answer + END, add_special_tokens=False)
    logits = model(mx.array([prompt + written[:-1]]))[0, len(prompt) - 1 :]
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    # A sampled answer has to be the script's, also the thousandth.
    chosen = mx.take_along_axis(logprobs, mx.array(written)[:, None], axis=-1)
    assert chosen.min().item() > -1e-4


def test_the_templates_exist() -> None:
    assert all(path.is_file() for path in TEMPLATES.values())


@pytest.mark.parametrize(
    ("outcome", "share", "failed"),
    [
        ("ok", None, False),
        ("ok", 0.99, False),
        ("ok", 0.5, True),
        ("no", 1.0, True),
        ("skipped", None, False),
    ],
)
def test_a_turn_that_was_computed_again_has_failed(
    outcome: str, share: float | None, failed: bool
) -> None:
    verdict = Verdict("c", "1", "m", "second turn", outcome, share)
    assert verdict.failed(0.95) == failed
    assert ("FAILED" in verdict.line(0.95)) == failed
