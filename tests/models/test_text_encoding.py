"""One tokenizer for many threads: the ids are the tokenizer's, and nobody waits."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from mlxceld.models.encoding import TextEncoder
from mlxceld.models.vocabulary import Vocabulary
from tiny_models import tiny_tokenizer

TEXTS = (
    "",
    "Hello, world.  Two  spaces\n\n\tand a tab",
    "né 你好 😀 \u0301",
    "a<|im_end|>b <|im_start|>system\n",
    "x" * 3000,
)
STEP_SECONDS = 30


def byte_level() -> Tokenizer:
    return tiny_tokenizer()


def with_bos() -> Tokenizer:
    tokenizer = tiny_tokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 256)]
    )
    return tokenizer


def truncating() -> Tokenizer:
    tokenizer = tiny_tokenizer()
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=16)
    return tokenizer


def sentencepiece() -> Tokenizer:
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "▁a", "Hello", "l"]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={piece: number for number, piece in enumerate(pieces)},
            merges=[("▁", "a")],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


def composing() -> Tokenizer:
    tokenizer = tiny_tokenizer()
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return tokenizer


@pytest.mark.parametrize("make", [byte_level, with_bos, truncating, sentencepiece, composing])
@pytest.mark.parametrize("special", [False, True])
def test_ids_and_texts_are_the_tokenizers_own(make: Any, special: bool) -> None:
    reference = PreTrainedTokenizerFast(tokenizer_object=make())
    encoder = TextEncoder(PreTrainedTokenizerFast(tokenizer_object=make()))
    assert encoder.waits_for_nobody
    for text in TEXTS:
        ids = reference.encode(text, add_special_tokens=special)
        assert encoder.encode(text, add_special_tokens=special) == ids
        for skip in (False, True):
            expected = reference.decode(
                ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False
            )
            assert encoder.decode(ids, skip_special_tokens=skip) == expected


class Shouting(PreTrainedTokenizerFast):
    """Does more than its backend, in Python."""

    def encode(self, text: Any, *args: Any, **kwargs: Any) -> Any:
        return super().encode(text.upper(), *args, **kwargs)


def test_a_tokenizer_that_does_more_than_its_backend_is_asked_itself() -> None:
    encoder = TextEncoder(Shouting(tokenizer_object=tiny_tokenizer()))
    assert not encoder.waits_for_nobody
    assert encoder.encode("ab", add_special_tokens=False) == [65, 66]


class HeldBackend:
    """A backend that stands still in a long text until it is let go."""

    def __init__(self, backend: Tokenizer) -> None:
        self._backend = backend
        self.entered = threading.Event()
        self.go_on = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def encode_batch_fast(self, texts: list[str], **options: Any) -> Any:
        if len(texts[0]) > 1000:
            self.entered.set()
            assert self.go_on.wait(STEP_SECONDS)
        return self._backend.encode_batch_fast(texts, **options)


def test_a_short_text_does_not_wait_for_a_long_one() -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tiny_tokenizer())
    held = HeldBackend(tokenizer.backend_tokenizer)

    class Wrapper:
        backend_tokenizer = held

        def __getattr__(self, name: str) -> Any:
            return getattr(tokenizer, name)

    encoder = TextEncoder(Wrapper())
    found: list[int] = []
    long = threading.Thread(
        target=lambda: found.extend(encoder.encode("x" * 2000, add_special_tokens=False))
    )
    long.start()
    assert held.entered.wait(STEP_SECONDS)
    assert encoder.encode("ab", add_special_tokens=False) == [97, 98]
    assert encoder.decode([97, 98]) == "ab"
    assert not found
    held.go_on.set()
    long.join(STEP_SECONDS)
    assert len(found) == 2000


def test_other_threads_run_while_a_text_is_tokenized() -> None:
    encoder = TextEncoder(PreTrainedTokenizerFast(tokenizer_object=tiny_tokenizer()))
    text = "hello world " * 20_000
    over, ticks = threading.Event(), 0

    def tick() -> None:
        nonlocal ticks
        # Waiting lets the interpreter go, and coming back needs it.
        while not over.wait(0.001):
            ticks += 1

    ticking = threading.Thread(target=tick)
    ticking.start()
    try:
        for _ in range(200):
            before = ticks
            encoder.encode(text, add_special_tokens=False)
            # More than once: not merely between two calls.
            if ticks - before > 2:
                break
        else:
            pytest.fail("no other thread ran during a call")
    finally:
        over.set()
        ticking.join(STEP_SECONDS)


def test_bytes_of_tokens_are_looked_up_without_the_tokenizer() -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tiny_tokenizer())

    class Once:
        closed = False

        def __getattr__(self, name: str) -> Any:
            assert not self.closed, name
            return getattr(tokenizer, name)

    source = Once()
    vocabulary = Vocabulary(source)
    source.closed = True
    assert [vocabulary.bytes_of(token) for token in (97, 258, 300, 319, 320, 10**9, -1)] == [
        b"a",
        b"<|im_end|>",
        b" w300",
        b" w319",
        b"",
        b"",
        b"",
    ]
    assert vocabulary.longest_token_bytes == len("<|endoftext|>")


def test_a_name_that_is_plain_text_is_not_read_as_stand_ins() -> None:
    tokenizer = tiny_tokenizer()
    # U+00A0 stands for no byte: the name is what it says.
    tokenizer.add_tokens(["a\u00a0b"])
    vocabulary = Vocabulary(PreTrainedTokenizerFast(tokenizer_object=tokenizer))
    assert vocabulary.bytes_of(320) == "a\u00a0b".encode()


@pytest.mark.parametrize(
    ("make", "keeps"), [(byte_level, True), (sentencepiece, False), (composing, False)]
)
def test_which_tokenizers_may_shorten_a_text(make: Any, keeps: bool) -> None:
    assert Vocabulary(PreTrainedTokenizerFast(tokenizer_object=make())).keeps_length is keeps
