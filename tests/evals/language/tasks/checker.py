"""What the task file beside it calls: the share of right words in an answer."""

from typing import Any

import torch

from diffcache.evals.language import wordchain


def right_words(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    letters = doc["prompt"].removeprefix("<bos>") + results[0]
    ids = torch.tensor([[wordchain.BOS, *(wordchain.SYMBOLS.index(letter) for letter in letters)]])
    prompt_length = len(doc["prompt"].removeprefix("<bos>")) + 1
    return {"right_words": float(wordchain.right_words(ids, prompt_length).float().mean())}
