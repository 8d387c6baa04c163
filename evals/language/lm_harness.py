"""EleutherAI's lm-evaluation-harness on a masked-diffusion language model, accelerated or not.

    python -m diffcache.evals.language.lm_harness run --model diffcache --tasks gsm8k --apply_chat_template \\
        --model_args pretrained=GSAI-ML/LLaDA-8B-Instruct,trust_remote_code=True,method=fast-dllm-dual,threshold=0.9

    from lm_eval import simple_evaluate
    simple_evaluate(DiffusionLM(accelerate(model), tokenizer, threshold=0.9), tasks=[...])

Needs the extra `lm-eval`.
"""

from __future__ import annotations

from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from lm_eval.utils import simple_parse_args_string
from torch import Tensor
from tqdm import tqdm

from diffcache.api import accelerate
from diffcache.evals.language.likelihood import likelihood_bound
from diffcache.language.backbones.families import backbone_of
from diffcache.language.loading import load_language_model
from diffcache.language.sampler.checks import mask_id_of
from diffcache.language.sampler.sampling import generate

SIZE_NAMES = ("max_gen_toks", "max_new_tokens", "max_tokens")
"""Names of the length of an answer in tasks; the first one that a task has counts."""


@register_model("diffcache")
class DiffusionLM(LM):  # type: ignore[misc]
    """Answers generation tasks with `generate`, and likelihood tasks with a bound on the likelihood.

    Of a task's options, the length and the stop strings are obeyed. Chat templates are the tokenizer's.

    Args:
        model: accelerated or plain.
        tokenizer: pads on the left.
        gen_length: tokens of an answer, if the task does not say.
        batch_size: requests in a model call; draws in one, for likelihoods.
        mc_num: Monte Carlo draws of a likelihood (LLaDA: 128).
        check_greedy: also tell whether the model would write the target itself, which some metrics ask for.
        **options: of `generate`.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        gen_length: int = 256,
        batch_size: int = 1,
        mc_num: int = 128,
        check_greedy: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        self.model = model
        self.tokenizer = tokenizer
        self.gen_length = gen_length
        self.batch = batch_size
        self.mc_num = mc_num
        self.check_greedy = check_greedy
        self.options = options
        self._device = next(model.parameters()).device

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None
    ) -> DiffusionLM:
        """From the command line's `--model_args`, `--batch_size` and `--device`.

        Args:
            arg_dict: `pretrained` is the checkpoint; `dtype`, `trust_remote_code`, `revision`, `attn_implementation`,
                `token_shift` and `block_attention` go to `load_language_model`; `method` to `accelerate` ("plain": no
                cache); all others to this class.
        """
        given, more = dict(arg_dict), additional_config or {}
        loading = (
            "dtype",
            "trust_remote_code",
            "revision",
            "attn_implementation",
            "token_shift",
            "block_attention",
        )
        asked = {name: given.pop(name) for name in loading if name in given}
        path, method = given.pop("pretrained"), given.pop("method", None)
        device = more.get("device")
        if not torch.cuda.is_available() and str(device).startswith("cuda"):  # the harness's default
            device = "cpu"
        model, tokenizer = load_language_model(path, device=device, **asked)
        if method != "plain":
            accelerate(model, method)
        return cls(model, tokenizer, batch_size=int(more.get("batch_size") or 1), **given)

    @classmethod
    def create_from_arg_string(
        cls, arg_string: str, additional_config: dict[str, Any] | None = None
    ) -> DiffusionLM:
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    @property
    def tokenizer_name(self) -> str:
        return str(self.tokenizer.name_or_path).replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The tokenizer's template, or the one of its templates that is asked for; None where none is asked for."""
        if chat_template is False:
            return None
        name = chat_template if isinstance(chat_template, str) else None
        template: str = self.tokenizer.get_chat_template(name)
        return template

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        text: str = self.tokenizer.apply_chat_template(
            chat_history,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )
        return text

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """The answers in order, each cut at its task's first stop string."""
        answers = []
        # padding would shift the blocks of a model that attends in blocks
        batch = self.batch if backbone_of(self.model).block_attention is None else 1
        for start in tqdm(range(0, len(requests), batch), disable=disable_tqdm):
            answers += self._answer(requests[start : start + batch])
        return answers

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """A lower bound on each log-likelihood (see `likelihood_bound`), and whether the model would write the target."""
        return [
            self._likelihood(*self._encoded(*request.args))
            for request in tqdm(requests, disable=disable_tqdm)
        ]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """A lower bound on the log-likelihood of each text as a whole."""
        return [
            self._bound(self._beginning(), self._tokens(request.args[0]))
            for request in tqdm(requests, disable=disable_tqdm)
        ]

    def _likelihood(self, context: Tensor, target: Tensor) -> tuple[float, bool]:
        return self._bound(context, target), self.check_greedy and self._would_write(context, target)

    def _bound(self, context: Tensor, target: Tensor) -> float:
        scale = self.options.get("cfg_scale", 0.0)
        how = {"draws": self.mc_num, "batch": min(max(self.batch, 16), self.mc_num), "cfg_scale": scale}
        return likelihood_bound(self.model, context, target, self._mask_id, **how)

    def _would_write(self, context: Tensor, target: Tensor) -> bool:
        """Whether the target is what the model writes behind the context, one token for each call, the surest first."""
        size = len(target)
        in_blocks = backbone_of(self.model).block_attention is not None
        written = generate(
            self.model,
            context[None].to(self._device),
            gen_length=size,
            block_length=None if in_blocks else size,
            eos_early_stop=False,
            mask_token_id=self._mask_id,
        )
        return bool(torch.equal(written.sequences[0, len(context) :].cpu(), target))

    @property
    def _mask_id(self) -> int:
        return mask_id_of(self.model, self.options.get("mask_token_id"))

    def _encoded(self, context: str, target: str) -> tuple[Tensor, Tensor]:
        """Context and target as tokens. Spaces between them belong to the target, as they do in the text."""
        bare = context.rstrip()
        target = context[len(bare) :] + target
        given = self._tokens(bare) if bare else self._beginning()
        whole = self._tokens(bare + target)
        return given, whole[len(given) :] if bare else whole

    def _tokens(self, text: str) -> Tensor:
        tokens: Tensor = self.tokenizer(text, return_tensors="pt", **self._special(text)).input_ids[0]
        return tokens

    def _special(self, text: str) -> dict[str, bool]:
        """A chat template has written the beginning already."""
        begin = self.tokenizer.bos_token
        return {"add_special_tokens": False} if begin and text.startswith(begin) else {}

    def _beginning(self) -> Tensor:
        """What stands before a text without context: nothing, or a token where each is predicted from the one before."""
        if not backbone_of(self.model).token_shift:
            return torch.empty(0, dtype=torch.int64)
        ids = (self.tokenizer.bos_token_id, self.tokenizer.eos_token_id)
        return torch.tensor([next(each for each in ids if each is not None)])

    def _answer(self, requests: list[Instance]) -> list[str]:
        prompts, options = zip(*(request.args for request in requests), strict=True)
        sizes = [
            next((each[name] for name in SIZE_NAMES if name in each), self.gen_length) for each in options
        ]
        given = self.tokenizer(
            list(prompts), padding=True, padding_side="left", return_tensors="pt", **self._special(prompts[0])
        )
        written = generate(
            self.model,
            given.input_ids.to(self._device),
            given.attention_mask.to(self._device),
            gen_length=max(sizes),
            **self.options,
        )
        answers = []
        for i, (size, each) in enumerate(zip(sizes, options, strict=True)):
            tokens = written.sequences[i, given.input_ids.shape[1] :][: min(size, int(written.lengths[i]))]
            text = self.tokenizer.decode(tokens, skip_special_tokens=True)
            answers.append(_until(text, each.get("until", [])))
        return answers


def _until(text: str, stops: str | list[str]) -> str:
    """The text before the first stop string in it."""
    each = [stops] if isinstance(stops, str) else stops
    return text[: min([text.find(stop) for stop in each if stop in text], default=len(text))]


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
