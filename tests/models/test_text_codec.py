from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from mlxceld.kv.memory import release_freed
from mlxceld.models.detokenizer import ByteDetokenizer, WindowDetokenizer
from mlxceld.models.text import TextCodec
from mlxceld.models.vocabulary import Vocabulary
from tiny_models import DEFAULT_TEMPLATE, tiny_tokenizer

MakeCodec = Callable[..., TextCodec]


def fast(tokenizer: Tokenizer) -> Any:
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def test_facts_of_the_model(make_codec: MakeCodec) -> None:
    codec = make_codec(DEFAULT_TEMPLATE)
    assert (codec.vocab_size, codec.eos_ids, codec.has_chat_template) == (320, {258}, True)


def test_tokens_and_back(make_codec: MakeCodec) -> None:
    codec = make_codec()
    ids = codec.encode("é<|im_end|>", add_special_tokens=False)
    assert ids == [0xC3, 0xA9, 258]
    assert codec.decode(ids) == "é"
    assert codec.decode(ids, skip_special_tokens=False) == "é<|im_end|>"
    assert codec.encode("", add_special_tokens=True) == []
    assert codec.decode([]) == ""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere freed memory may stay")
def test_long_words_do_not_pile_up_in_the_tokenizer(make_codec: MakeCodec) -> None:
    codec = make_codec()
    # Without a limit 10,000 of these are kept, some 7 KB each.
    rng = random.Random(1)
    texts = ["".join(rng.choices("abcdefgh", k=200)) for _ in range(12_000)]
    process = psutil.Process()
    release_freed()
    before = process.memory_info().rss
    for text in texts:
        assert len(codec.encode(text, add_special_tokens=False)) == 200
    release_freed()
    assert process.memory_info().rss - before < 32 << 20


def test_spaces_before_punctuation_stay(make_codec: MakeCodec) -> None:
    codec = make_codec()
    text = "a , b . c 's"
    assert codec.decode(codec.encode(text, add_special_tokens=False)) == text


def test_a_token_alone(make_codec: MakeCodec) -> None:
    codec = make_codec()
    assert (codec.token_text(97), codec.token_bytes(97)) == ("a", b"a")
    assert (codec.token_text(0xC3), codec.token_bytes(0xC3)) == ("�", b"\xc3")
    assert (codec.token_text(300), codec.token_bytes(300)) == (" w300", b" w300")
    assert codec.token_text(258) == "<|im_end|>"


def test_ids_beyond_the_tokenizers_vocabulary_have_no_text(make_codec: MakeCodec) -> None:
    codec = make_codec()
    assert codec.token_bytes(5000) == b""
    assert codec.decode([97, 5000, 98]) == "ab"
    detokenizer = codec.detokenizer([97])
    assert [detokenizer.add(token) for token in (97, 5000, 98)] == ["a", "", "b"]


def test_byte_level_vocabularies_are_read_as_bytes(make_codec: MakeCodec) -> None:
    codec = make_codec()
    assert isinstance(codec.detokenizer([]), ByteDetokenizer)
    raw = "né😀".encode()
    detokenizer = codec.detokenizer([257])
    pieces = [detokenizer.add(token) for token in (*raw, 258)]
    assert [piece for piece in pieces if piece] == ["n", "é", "😀"]


def test_every_byte_has_its_token() -> None:
    vocabulary = Vocabulary(fast(tiny_tokenizer()))
    assert vocabulary.byte_level
    assert [vocabulary.bytes_of(byte) for byte in range(256)] == [bytes([b]) for b in range(256)]
    assert vocabulary.special_ids == {256, 257, 258, 259}


def test_sentencepiece_vocabularies_are_read_through_a_window() -> None:
    pieces = ["<unk>", "▁Hi", "<0xC3>", "<0xA9>", "é"]
    tokenizer = Tokenizer(
        models.BPE(vocab={piece: number for number, piece in enumerate(pieces)}, merges=[])
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    vocabulary = Vocabulary(fast(tokenizer))
    assert not vocabulary.byte_level
    assert [vocabulary.bytes_of(token) for token in range(1, 6)] == [
        b" Hi",
        b"\xc3",
        b"\xa9",
        "é".encode(),
        b"",
    ]

    class Wrapped:
        """The few things that a codec asks of mlx-lm's wrapper beside the tokenizer's own."""

        eos_token_ids = frozenset({0})
        has_chat_template = False

        def __getattr__(self, name: str) -> Any:
            return getattr(inner, name)

    inner = fast(tokenizer)
    detokenizer = TextCodec(Wrapped(), 5).detokenizer([4])
    assert isinstance(detokenizer, WindowDetokenizer)
    assert [detokenizer.add(token) for token in (1, 2, 3)] == [" Hi", "", "é"]
    assert detokenizer.finish() == ""


@given(text=st.text(max_size=60))
def test_any_text_comes_back(codec_for_texts: TextCodec, text: str) -> None:
    ids = codec_for_texts.encode(text, add_special_tokens=False)
    assert codec_for_texts.decode(ids, skip_special_tokens=False) == text
    detokenizer = codec_for_texts.detokenizer([])
    pieces = [detokenizer.add(token) for token in ids]
    assert "".join(pieces) + detokenizer.finish() == codec_for_texts.decode(ids)


def test_threads_do_not_disturb_each_other(make_codec: MakeCodec) -> None:
    codec = make_codec(DEFAULT_TEMPLATE)
    texts = [f"text {number} é😀 " * 20 for number in range(4)]
    faults: list[BaseException] = []
    start = threading.Barrier(len(texts))

    def work(text: str) -> None:
        try:
            start.wait(30)
            for _ in range(20):
                ids = codec.encode(text, add_special_tokens=True)
                assert codec.decode(ids) == text
                rendered = codec.render_chat([{"role": "user", "content": text}])
                assert text in codec.decode(rendered.tokens)
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=work, args=(text,)) for text in texts]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        sys.setswitchinterval(interval)
    assert faults == []
