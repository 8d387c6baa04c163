"""Word chains: text whose tokens depend on each other, with a checker that needs no reference answer.

A text is a chain of eight-letter words without spaces. Each word begins with the last letter of the word before:
`rainbowsstudentssunshine`. Any such word may come next, but its letters must agree with each other and with the word
before. So a model must see the letters that it has just written, and a cache that hides new tokens makes errors at once.
"""

from __future__ import annotations

import torch
from torch import Tensor

WORDS = (
    *("directed", "designed", "database", "discrete", "december", "dinosaur", "diamonds", "darkness"),
    *("expanded", "extended", "estimate", "everyone", "engineer", "employer", "elements", "examples"),
    *("repeated", "received", "resource", "response", "register", "remember", "requests", "rainbows"),
    *("standard", "shepherd", "sunshine", "sentence", "singular", "survivor", "students", "subjects"),
)
"""Two words for each pair of first and last letter out of d, e, r, s, so that a word fits every gap."""

WORD = 8
HEAD = 1
PAD, MASK, EOS, BOS = range(4)
SYMBOLS = ["<pad>", "<mask>", "<eos>", "<bos>", *sorted(set("".join(WORDS)))]
"""The vocabulary; a token's id is its index."""

_LETTERS = torch.tensor([[SYMBOLS.index(letter) for letter in word] for word in WORDS])
_ENDS = [SYMBOLS.index(letter) for letter in "ders"]
_BY_FIRST = torch.stack([(_LETTERS[:, 0] == end).nonzero()[:, 0] for end in _ENDS])
_LAST = torch.tensor([_ENDS.index(int(end)) for end in _LETTERS[:, -1]])


def length_of(words: int) -> int:
    """The number of tokens in a text of so many words."""
    return HEAD + WORD * words


def texts(n: int, words: int, generator: torch.Generator) -> Tensor:
    """n random chains, token ids [n, 1 + 8 * words]."""
    draws = torch.randint(_BY_FIRST.shape[1], (n, words), generator=generator)
    word = torch.randint(len(WORDS), (n,), generator=generator)
    chain = [word]
    for step in range(1, words):
        word = _BY_FIRST[_LAST[word], draws[:, step]]
        chain.append(word)
    letters = _LETTERS[torch.stack(chain, dim=1)].flatten(1)
    return torch.cat([letters.new_full((n, HEAD), BOS), letters], dim=1)


def prompts(n: int, words: int, seed: int) -> Tensor:
    """n random beginnings of so many words, token ids [n, 1 + 8 * words]."""
    return texts(n, words, torch.Generator().manual_seed(seed))


def right_words(ids: Tensor, prompt_length: int) -> Tensor:
    """Bool [n, words written]: which words after the prompt exist and begin with the last letter of the word before.

    Args:
        ids: texts with their prompts, [n, length]; an unfinished last word is ignored.
        prompt_length: tokens of the prompt: the head and whole words.
    """
    written = ids[:, prompt_length:]
    written = written[:, : written.shape[1] // WORD * WORD].reshape(len(ids), -1, WORD)
    exists = (written[:, :, None] == _LETTERS.to(ids.device)).all(dim=3).any(dim=2)
    before = torch.cat([ids[:, prompt_length - 1 : prompt_length], written[:, :-1, -1]], dim=1)
    chained: Tensor = exists & (written[:, :, 0] == before)
    return chained


def exact(ids: Tensor, prompt_length: int) -> Tensor:
    """Bool [n]: texts in which every word after the prompt is right."""
    return right_words(ids, prompt_length).all(dim=1)
