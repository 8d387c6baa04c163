"""Captions of emoji: every word is one token, every caption fits, and the list holds no name twice."""

from __future__ import annotations

from itertools import product

from diffcache.evals.testbeds import emoji, zoo
from diffcache.evals.training import emoji as training
from diffcache.evals.training import lumina2, text


def test_every_name_has_its_own_picture() -> None:
    codes = emoji.codes()
    assert codes["red apple"] == "1f34e"
    assert len(set(codes.values())) == len(codes) > 200
    assert set(codes.values()) < set(emoji.every_code())


def test_captions_are_every_name_on_every_ground() -> None:
    expected = {f"{name} on {ground}" for name, ground in product(emoji.codes(), emoji.GROUNDS)}
    assert len(emoji.captions()) == len(expected)
    assert set(emoji.captions()) == expected


def test_every_word_is_one_token_and_every_caption_fits() -> None:
    vocabulary = training.vocabulary()
    captions = emoji.captions()
    t5, clip = text.t5_tokenizer(vocabulary), text.clip_tokenizer(vocabulary)
    for caption, by_t5, by_clip in zip(
        captions, t5(captions).input_ids, clip(captions).input_ids, strict=True
    ):
        words = len(caption.split())
        assert len(by_t5) == words + 1, caption
        assert len(by_clip) == words + 2 <= vocabulary.length, caption
        assert t5.unk_token_id not in by_t5, caption


def test_pipelines_pad_prompts_as_their_trainings_did() -> None:
    for name in ("pixart", "sd3", "turbo", "sana"):
        assert zoo.sample_call(name, 0)["max_sequence_length"] == training.LENGTH
    assert zoo.sample_call("lumina2", 0)["max_sequence_length"] == lumina2.LENGTH


def test_words_that_lumina2_writes_before_prompts_are_one_token_each() -> None:
    tokenizer = text.t5_tokenizer(lumina2.vocabulary())
    read = tokenizer([f" <Prompt Start> {caption}" for caption in emoji.captions()]).input_ids
    lengths = [len(caption.split()) + 3 for caption in emoji.captions()]  # those two words, and the end
    assert [*map(len, read)] == lengths
    assert max(lengths) <= lumina2.LENGTH
    assert not any(tokenizer.unk_token_id in ids for ids in read)
