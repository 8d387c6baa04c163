"""What a user asks of `generate`: checked, and made into a decode rule."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from diffcache.language.sampler.blocks import quotas_of, shares_of
from diffcache.language.sampler.decoding import Chance, Factor, Quota, Rule, Threshold
from diffcache.language.sampler.drawing import BY_CHANCE, BY_PROBABILITY, REMASKING
from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.numbers_given import is_count, is_number


@dataclass(frozen=True, kw_only=True)
class DecodeOptions:
    """How `generate` writes.

    Attributes:
        gen_length: tokens that are written behind each prompt.
        block_length: how many are written before the next ones are begun. None: 32, or all of them where there is a window.
        sub_block_length: how many tokens of a block are written before the next ones of it, where a model attends in blocks. It
            sees the masks of the whole block (Fast-dLLM v2's small_block_size: 8). None for the block.
        steps: model calls in all, shared out in proportion to the blocks' sizes; None for one token each. Only without
            threshold and factor.
        eps: None commits the same number at every call (LLaDA). A number is Dream's schedule: linear timesteps from 1 to
            `eps` (published: 1e-3), with `steps`.
        threshold: commit tokens that have at least this probability (Fast-dLLM: 0.9).
        min_tokens: so many in any case, with a threshold (LLaDA2's num_to_transfer).
        factor: commit n tokens together while the n-th has a probability of at least 1 - factor / (n + 1).
        window: commit only the first so many masks. None: all of the block, or the method's own window.
        remasking: which candidates come first. LLaDA's "low_confidence": the surest; "random". Dream's "maskgit_plus": the
            surest after temperature, top_p and top_k; "topk_margin": the largest lead over the runner-up; "entropy": the
            lowest; "origin": by chance, after the schedule.
        alg_temp: makes Dream's order random: positions are drawn by a softmax of confidence / alg_temp.
        temperature: 0 takes the likeliest token.
        top_p, top_k: draw only from the likeliest tokens that have this probability together, or from so many.
        cfg_scale: guidance away from the prompt-less text, whose prompt is masked; 0 for none (LLaDA). Doubles the batch.
        editing_threshold: written tokens of the block are replaced where another one has more than this probability
            (LLaDA2.1: 0.5); None for never.
        max_post_steps: calls after a block's last mask that may still edit.
        mask_token_id, eos_token_id, eot_token_id: None: as the model's configuration says.
        eos_early_stop: True: nothing is written behind a text's first EOS. "block": the EOS's block is finished, and no other
            begun (LLaDA2, dInfer). False: everything is written.
        logits_eos_inf: never draw EOS (LLaDA, appendix B.4).
        confidence_eos_eot_inf: EOS and end-of-turn may be drawn, but are committed last (LLaDA, appendix B.4).
        seed: of all that is random: one for the batch, or a list with one for each text; None for PyTorch's random state. A text
            with a seed of its own does not depend on the others.

    Raises:
        ConfigError: an option out of range, or options that exclude each other.
    """

    gen_length: int = 128
    block_length: int | None = None
    sub_block_length: int | None = None
    steps: int | None = None
    eps: float | None = None
    threshold: float | None = None
    min_tokens: int = 1
    factor: float | None = None
    window: int | None = None
    remasking: str = "low_confidence"
    alg_temp: float | None = None
    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    cfg_scale: float = 0.0
    editing_threshold: float | None = None
    max_post_steps: int = 16
    mask_token_id: int | None = None
    eos_token_id: int | None = None
    eot_token_id: int | None = None
    eos_early_stop: bool | str = True
    logits_eos_inf: bool = False
    confidence_eos_eot_inf: bool = False
    seed: int | list[int] | None = None

    @classmethod
    def of(cls, **options: Any) -> DecodeOptions:
        """The options by name.

        Raises:
            ConfigError: a name that is no option.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        for name in options:
            if name not in known:
                raise ConfigError(f"generate has no option {name!r}; its options are {', '.join(known)}.")
        return cls(**options)

    def __post_init__(self) -> None:
        self._check_numbers()
        self._check_choices()
        self._check_together()

    @property
    def asks_quota(self) -> bool:
        """Whether a fixed number of calls writes the answer."""
        return self.threshold is None and self.factor is None

    def rule(self, size: int, calls: int) -> Rule:
        """The decode rule of a block of so many tokens, for which a quota has so many calls."""
        if self.threshold is not None:
            return Threshold(self.threshold, self.min_tokens)
        if self.factor is not None:
            return Factor(self.factor)
        if self.remasking == "origin":
            return Chance(tuple(shares_of(calls, self.eps or 0.0)))
        quotas = self.quotas(size, calls)
        return Quota(-(-size // calls) if quotas is None else max(quotas))

    def quotas(self, size: int, calls: int) -> list[int] | None:
        """What each call of a block of so many tokens commits, where a time schedule says so; None elsewhere."""
        if self.eps is None or not self.asks_quota or self.remasking == "origin":
            return None
        return quotas_of(size, calls, self.eps)

    def _check_numbers(self) -> None:
        for name in (
            "gen_length",
            "block_length",
            "sub_block_length",
            "steps",
            "window",
            "top_k",
            "min_tokens",
        ):
            size = getattr(self, name)
            if size is not None and not is_count(size):
                raise ConfigError(f"{name} must be at least 1 and a whole number, not {size!r}.")
        if not (_is_whole(self.max_post_steps) and self.max_post_steps >= 0):
            raise ConfigError(
                f"max_post_steps must be at least 0 and a whole number, not {self.max_post_steps!r}."
            )
        for name in ("threshold", "factor", "eps", "alg_temp", "top_p", "editing_threshold"):
            number = getattr(self, name)
            if number is not None and not is_number(number):
                raise ConfigError(f"{name} must be a finite number, not {number!r}.")
        for name in ("temperature", "cfg_scale", "alg_temp", "factor", "threshold", "editing_threshold"):
            number = getattr(self, name)
            if number is not None and not (is_number(number) and number >= 0):
                must = "a finite number" if not is_number(number) else "at least 0"
                raise ConfigError(f"{name} must be {must}, not {number!r}.")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p must be above 0 and at most 1, not {self.top_p!r}.")
        if self.eps is not None and not 0 <= self.eps < 1:
            raise ConfigError(f"eps must be at least 0 and below 1, not {self.eps!r}.")
        for name in ("mask_token_id", "eos_token_id", "eot_token_id"):
            given = getattr(self, name)
            if given is not None and not _is_whole(given):
                raise ConfigError(f"{name} must be a whole number, not {given!r}.")
        seeds = self.seed if isinstance(self.seed, list) else [self.seed]
        if self.seed is not None and not (seeds and all(map(_is_whole, seeds))):
            raise ConfigError(f"seed must be a whole number, or a list of them, not {self.seed!r}.")

    def _check_choices(self) -> None:
        if self.remasking not in REMASKING:
            names = ", ".join(f'"{name}"' for name in REMASKING)
            raise ConfigError(f"remasking must be one of {names}, not {self.remasking!r}.")
        if not (isinstance(self.eos_early_stop, bool) or self.eos_early_stop == "block"):
            raise ConfigError(f'eos_early_stop must be True, False or "block", not {self.eos_early_stop!r}.')

    def _check_together(self) -> None:
        given = [name for name in ("steps", "threshold", "factor") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ConfigError(f"{' and '.join(given)} are different decode rules: give one of them.")
        if not self.asks_quota and self.remasking not in BY_PROBABILITY:
            raise ConfigError(
                f'{given[0]} asks for confidence, the probability of a token, which remasking="{self.remasking}" does not '
                "rank by: leave one of them out."
            )
        if self.editing_threshold is not None and self.remasking not in BY_PROBABILITY:
            raise ConfigError(
                f'editing_threshold asks for the probability of a token, which remasking="{self.remasking}" does not rank by.'
            )
        if self.eps is not None and not self.asks_quota:
            raise ConfigError(f"eps is a schedule of a fixed number of calls: leave out eps or {given[0]}.")
        if self.min_tokens > 1 and self.threshold is None:
            raise ConfigError(
                "min_tokens goes with a threshold: without one, steps say how many tokens are committed."
            )
        if self.alg_temp and (not self.asks_quota or self.remasking in BY_CHANCE):
            raise ConfigError(
                "alg_temp makes a ranked order of a fixed number of calls random: leave out threshold and factor, and "
                "rank by confidence, margin or entropy."
            )


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
