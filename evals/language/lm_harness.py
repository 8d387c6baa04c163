"""Tasks of EleutherAI's lm-evaluation-harness on a masked-diffusion language model, accelerated or not.

    from lm_eval import simple_evaluate
    simple_evaluate(DiffusionLM(accelerate(model), tokenizer, threshold=0.9), tasks=[...])

Needs the extra `lm-eval`.
"""

from typing import Any, NoReturn

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from tqdm import tqdm

from diffcache.language.sampler.sampling import generate

SIZE_NAMES = ("max_gen_toks", "max_new_tokens", "max_tokens")
"""Names of the length of an answer in tasks; the first one that a task has counts."""


class DiffusionLM(LM):  # type: ignore[misc]
    """Answers generation tasks with `generate`. Of a task's options, the length and the stop strings are obeyed.

    Args:
        model: accelerated or plain.
        tokenizer: pads on the left.
        gen_length: tokens of an answer, if the task does not say.
        batch_size: requests in a model call.
        **options: of `generate`.
    """

    def __init__(
        self, model: Any, tokenizer: Any, *, gen_length: int = 256, batch_size: int = 1, **options: Any
    ) -> None:
        super().__init__()
        self.model = model
        self.tokenizer = tokenizer
        self.gen_length = gen_length
        self.batch = batch_size
        self.options = options

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """The answers in order, each cut at its task's first stop string."""
        answers = []
        for start in tqdm(range(0, len(requests), self.batch), disable=disable_tqdm):
            answers += self._answer(requests[start : start + self.batch])
        return answers

    def loglikelihood(self, requests: list[Instance]) -> NoReturn:
        """Not supported: a masked-diffusion model has no likelihood, only a bound on it."""
        raise NotImplementedError("only generation tasks are answered: choose tasks of type generate_until.")

    def loglikelihood_rolling(self, requests: list[Instance]) -> NoReturn:
        self.loglikelihood(requests)

    def _answer(self, requests: list[Instance]) -> list[str]:
        prompts, options = zip(*(request.args for request in requests), strict=True)
        sizes = [
            next((each[name] for name in SIZE_NAMES if name in each), self.gen_length) for each in options
        ]
        given = self.tokenizer(list(prompts), padding=True, padding_side="left", return_tensors="pt")
        device = next(self.model.parameters()).device
        written = generate(
            self.model,
            given.input_ids.to(device),
            given.attention_mask.to(device),
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
