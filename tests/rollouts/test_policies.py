"""Which frames stay and where they stand, worked out by hand."""

import pytest
import torch

from diffcache.rollouts.book import Book
from diffcache.rollouts.policies import (
    Chunk,
    DeepSink,
    Participative,
    Rolling,
    RolloutPolicy,
    Sink,
    policy_of,
)
from diffcache.schedulers.errors import ConfigError

PER_FRAME = 2


def book_of(frames: list[int], batch: int = 1) -> Book:
    frame = torch.tensor(frames).repeat_interleave(PER_FRAME)
    return Book.of_chunk(frame, frame, batch)


def chunk_at(frame: int, frames: int = 1) -> Chunk:
    return Chunk(frame, frames, PER_FRAME)


def after(policy: RolloutPolicy, book: Book, chunk: Chunk, relevance: torch.Tensor | None = None) -> Book:
    index = policy.kept(book, chunk, relevance)
    return book if index is None else book.chosen(index)


def frames_of(book: Book) -> list[int]:
    return book.frame[0, 0, ::PER_FRAME].tolist()


@pytest.mark.parametrize(
    ("policy", "kept", "places"),
    [
        (RolloutPolicy(), list(range(10)), list(range(10))),
        (Rolling(window=5), [6, 7, 8, 9], [0, 1, 2, 3]),
        (Sink(window=5, sink=2), [0, 1, 8, 9], [0, 1, 2, 3]),
        (Sink(window=5, sink=2, rephase=False), [0, 1, 8, 9], [-6, -5, 2, 3]),
        (DeepSink(window=7, sink=4), [0, 1, 2, 3, 8, 9], [0, 1, 2, 3, 4, 5]),
    ],
)
def test_frames_that_stay_and_their_places(policy, kept, places):
    book, chunk = book_of(list(range(10))), chunk_at(10)
    left = after(policy, book, chunk)
    assert frames_of(left) == kept
    assert policy.places(left, chunk)[0, 0, ::PER_FRAME].tolist() == places
    assert policy.left(book, chunk) == left.tokens


def test_a_chunk_takes_its_frames_of_the_window():
    book = book_of(list(range(9)))
    assert frames_of(after(Rolling(window=6), book, chunk_at(9, 3))) == [6, 7, 8]


def test_nothing_is_chosen_before_the_window_is_full():
    for policy in (Rolling(window=10), Sink(window=10), Participative(window=10, sink=2, budget=6, recent=2)):
        assert policy.kept(book_of(list(range(9))), chunk_at(9), None) is None
        assert not policy.is_judging(book_of(list(range(9))), chunk_at(9))


def test_participative_keeps_sink_recent_and_the_most_relevant_tokens_of_each_sample():
    policy = Participative(window=8, sink=2, budget=5, recent=2)
    book, chunk = book_of(list(range(8)), batch=2), chunk_at(8)
    assert policy.is_judging(book, chunk)
    relevance = torch.zeros(2, 1, 16)
    relevance[0, 0, 5] = relevance[0, 0, 10] = 9.0
    relevance[1, 0, 6] = relevance[1, 0, 7] = 9.0
    relevance[:, 0, :4] = -100.0  # a sink stays whatever it is worth
    left = after(policy, book, chunk, relevance)
    assert left.frame[0, 0].tolist() == [0, 0, 1, 1, 2, 5, 6, 6, 7, 7]
    assert left.frame[1, 0].tolist() == [0, 0, 1, 1, 3, 3, 6, 6, 7, 7]
    assert policy.places(left, chunk)[0, 0].tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert policy.left(book, chunk) == left.tokens


def test_relevance_as_published_and_as_attention():
    queries, keys = torch.randn(2, 3, 7, 4), torch.randn(2, 3, 5, 4)
    products = torch.einsum("bhrd,bhtd->bhrt", queries, keys) * 0.5
    raw = Participative().relevance(queries, keys, 0.5)
    mass = Participative(score="mass").relevance(queries, keys, 0.5)
    assert torch.allclose(raw, products.sum((1, 2))[:, None], atol=1e-5)
    assert torch.allclose(mass, products.softmax(-1).sum((1, 2))[:, None], atol=1e-5)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("rollin", {}, "there is no rollout policy 'rollin'"),
        ("rolling", {"sink": 2}, "rolling has no option 'sink'"),
        ("rolling", {"window": 2.5}, "a whole number of frames"),
        ("rolling", {"window": -1}, "a whole number of frames"),
        ("participative", {"score": "cosine"}, "choose 'raw' or 'mass'"),
        ("participative", {"budget": 3}, "no room for 10 sink"),
        (Rolling(), {"window": 2}, "has its own options"),
    ],
)
def test_wrong_options_are_refused(name, options, message):
    with pytest.raises(ConfigError, match=message):
        policy_of(name, options)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (Rolling(window=3), "no room for the past"),
        (Sink(window=6, sink=3), "leaves no newest frame"),
        (Participative(window=18), "do not fit window=18"),
    ],
)
def test_chunks_without_room_are_refused(policy, message):
    with pytest.raises(ConfigError, match=message):
        policy.check(chunk_at(0, 3))
