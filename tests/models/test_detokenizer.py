from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers

from mlxceld.models.detokenizer import ByteDetokenizer, Detokenizer, WindowDetokenizer
from tiny_models import tiny_tokenizer

TINY = tiny_tokenizer()
SPECIAL = frozenset(range(256, 260))

TEXT = st.text(
    st.one_of(
        st.characters(exclude_categories=["Cs"]),
        st.sampled_from("a é你好😀👨‍👩‍👧🇩🇪\u0301\u200d\n"),
    ),
    max_size=30,
)


def tiny_bytes(token: int) -> bytes:
    if token < 256:
        return bytes([token])
    return b"" if token in SPECIAL else f" w{token}".encode()


def over_bytes(prompt: Sequence[int] = ()) -> ByteDetokenizer:
    return ByteDetokenizer(tiny_bytes, prompt)


def sentencepiece() -> Tokenizer:
    """A SentencePiece-like vocabulary: words with their space, letters, and lone bytes."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "▁Hello", "▁world", "a", "b", "!", "é"]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=[], byte_fallback=True, unk_token="<unk>")
    )
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


SPM = sentencepiece()


def over_window(prompt: Sequence[int] = ()) -> WindowDetokenizer:
    return WindowDetokenizer(lambda ids: SPM.decode(list(ids)), prompt, frozenset(range(3)))


def pieces_of(detokenizer: Detokenizer, tokens: Sequence[int]) -> list[str]:
    return [*(detokenizer.add(token) for token in tokens), detokenizer.finish()]


@given(tokens=st.lists(st.integers(0, 319), max_size=60))
def test_byte_pieces_make_up_the_decoded_text(tokens: list[int]) -> None:
    assert "".join(pieces_of(over_bytes(), tokens)) == TINY.decode(tokens)


@given(text=TEXT)
def test_no_byte_piece_cuts_a_character(text: str) -> None:
    pieces = pieces_of(over_bytes(), list(text.encode()))
    assert "".join(pieces) == text
    # One byte a token: every character comes with its last byte, and nothing before.
    assert [piece for piece in pieces if piece] == list(text)


def test_a_character_that_stays_incomplete_is_told_at_the_end() -> None:
    assert pieces_of(over_bytes(), list("é😀".encode())[:-1]) == ["", "é", "", "", "", "�"]


def test_a_character_begun_in_the_prompt_is_completed() -> None:
    raw = list("a😀b".encode())
    assert "".join(pieces_of(over_bytes(raw[:3]), raw[3:])) == "😀b"


def test_special_tokens_give_no_text() -> None:
    assert pieces_of(over_bytes(), [97, 258, 98]) == ["a", "", "b", ""]
    assert pieces_of(over_window(), [SPM.token_to_id("a"), 2, SPM.token_to_id("b")]) == [
        "a",
        "",
        "b",
        "",
    ]


@given(text=TEXT)
def test_window_pieces_make_up_the_text(text: str) -> None:
    tokens = SPM.encode("b" + text, add_special_tokens=False).ids
    pieces = pieces_of(over_window(tokens[:1]), tokens[1:])
    assert "".join(pieces) == text
    assert pieces[-1] == ""


def test_the_prompt_decides_about_the_first_space() -> None:
    hello = SPM.token_to_id("▁Hello")
    assert pieces_of(over_window(), [hello, hello]) == ["Hello", " Hello", ""]
    assert pieces_of(over_window([1]), [hello]) == ["Hello", ""]
    assert pieces_of(over_window([SPM.token_to_id("!")]), [hello]) == [" Hello", ""]


def test_a_window_holds_back_a_partial_character() -> None:
    emoji = [SPM.token_to_id(f"<0x{byte:02X}>") for byte in "😀".encode()]
    prompt = [SPM.token_to_id("a")]
    assert pieces_of(over_window(prompt), emoji) == ["", "", "", "😀", ""]
    assert "�" in pieces_of(over_window(prompt), emoji[:2])[-1]
