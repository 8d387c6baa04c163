"""What modelling files written for transformers 4 need to load under transformers 5.

LLaDA, Dream, LLaDA-MoE, LLaDA2, SDAR, Fast-dLLM v2 and MMaDA come with such files. Each name, table entry and method below is
there while `transformers_4()` is entered, and gone afterwards. What the model itself needs later stays on the model alone.
"""

import inspect
import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

import torch
from accelerate import init_empty_weights
from torch import Tensor
from transformers import PreTrainedModel, initialization, utils
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.utils import import_utils

logger = logging.getLogger("diffcache")

_NAMES: tuple[tuple[Any, str, Any], ...] = (
    (import_utils, "is_torch_fx_available", lambda: False),  # LLaDA2
    (utils, "LossKwargs", utils.TransformersKwargs),  # SDAR
    (PreTrainedModel, "all_tied_weights_keys", {}),  # `post_init` sets it, which LLaDA never calls
)
"""What transformers 5 lacks: module or class, name, stand-in."""


@contextmanager
def transformers_4() -> Iterator[None]:
    """Inside, modelling files written for transformers 4 can be imported, built and filled with weights."""
    with ExitStack() as stack:
        for owner, name, stand_in in _NAMES:
            if not hasattr(owner, name):
                stack.enter_context(patch.object(owner, name, stand_in, create=True))
        stack.enter_context(patch.dict(ROPE_INIT_FUNCTIONS, {**_FREQUENCIES, **ROPE_INIT_FUNCTIONS}))
        for name, wrapper in _METHODS.items():
            own = inspect.getattr_static(PreTrainedModel, name)
            stack.enter_context(patch.object(PreTrainedModel, name, wrapper(own)))
        stack.enter_context(_sdp_flag_kept())
        yield


def default_frequencies(config: Any, device: Any = None, *_: Any, **__: Any) -> tuple[Tensor, float]:
    """The unscaled frequencies of rotary positions, [D / 2], and 1: `ROPE_INIT_FUNCTIONS["default"]` of transformers 4."""
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    size = int(head_dim * getattr(config, "partial_rotary_factor", 1.0))
    steps = torch.arange(0, size, 2, dtype=torch.int64).to(device=device, dtype=torch.float)
    return 1.0 / (_theta(config) ** (steps / size)), 1.0


def _theta(config: Any) -> float:
    theta = getattr(config, "rope_theta", None)
    return float(theta if theta is not None else config.rope_parameters["rope_theta"])


def complete(model: Any) -> None:
    """Gives a model of remote code the attributes that its own forward and `save_pretrained` read, and transformers 5 did not."""
    if not hasattr(model.config, "use_cache"):  # LLaDA's passes it on to PretrainedConfig, which now drops it
        model.config.use_cache = False
    if not hasattr(model, "all_tied_weights_keys"):
        model.all_tied_weights_keys = {}


def refill_frequencies(model: Any) -> None:
    """Computes rotary frequencies again where a model of remote code was loaded without `transformers_4`.

    Transformers 5 builds models on the meta device, and leaves what a modelling file computed there as uninitialised memory:
    no error, wrong positions.
    """
    for module in model.modules():
        kept, compute = getattr(module, "inv_freq", None), getattr(module, "rope_init_fn", None)
        if kept is None or compute is None or "dynamic" in module.rope_type or module.rope_type == "longrope":
            continue
        right = compute(module.config, kept.device)[0].to(kept.dtype)
        if not torch.equal(kept, right):
            logger.warning(
                "the rotary frequencies of %s were never filled: computed anew.", type(model).__name__
            )
            kept.data.copy_(right)


def is_remote(model: Any) -> bool:
    """Whether the model's class comes from a modelling file outside of transformers."""
    return isinstance(model, PreTrainedModel) and model.is_custom_code()


def _computed_buffers_kept(own: Any) -> Any:
    """Around `get_init_context`: parameters are built on the meta device, buffers are computed."""

    @classmethod  # type: ignore[misc]
    @wraps(own.__func__)
    def get_init_context(cls: Any, *args: Any, **kwargs: Any) -> Any:
        contexts = own.__func__(cls, *args, **kwargs)
        if not cls.is_custom_code():
            return contexts
        meta = torch.device("meta")
        kept = [each for each in contexts if each != meta]
        return [*kept, initialization.no_init_weights(), init_empty_weights(include_buffers=False)]

    return get_init_context


def _computed_buffers_moved(own: Any) -> Any:
    """Around `_move_missing_keys_from_meta_to_device`: it replaces computed buffers by uninitialised memory."""

    @wraps(own)
    def move(self: Any, *args: Any, **kwargs: Any) -> None:
        computed = {key: each for key, each in self.named_non_persistent_buffers() if not each.is_meta}
        own(self, *args, **kwargs)
        for key, value in computed.items():
            moved = self.get_buffer(key)
            moved.copy_(value)
            moved._is_hf_initialized = True

    return move


def _tied_by_name(own: Any) -> Any:
    """Around `get_expanded_tied_weights_keys`: transformers 4 listed the tied weights without what they are tied to."""

    @wraps(own)
    def keys(self: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self._tied_weights_keys, list):
            source = self.get_input_embeddings().weight
            name = next(name for name, each in self.named_parameters() if each is source)
            self._tied_weights_keys = dict.fromkeys(self._tied_weights_keys, name)
        return own(self, *args, **kwargs)

    return keys


def _tying_without_arguments(own: Any) -> Any:
    """Around `_finalize_model_loading`, which passes arguments to `tie_weights` that LLaDA's does not take."""

    @staticmethod  # type: ignore[misc]
    @wraps(own.__func__)
    def finalise(model: Any, *args: Any, **kwargs: Any) -> Any:
        tie = model.tie_weights
        takes_arguments = bool(inspect.signature(tie).parameters)
        with ExitStack() as stack:
            if not takes_arguments:
                stack.enter_context(patch.object(model, "tie_weights", lambda **_: tie()))
            return own.__func__(model, *args, **kwargs)

    return finalise


_FREQUENCIES = {"default": default_frequencies}

_METHODS = {
    "get_init_context": _computed_buffers_kept,
    "_move_missing_keys_from_meta_to_device": _computed_buffers_moved,
    "get_expanded_tied_weights_keys": _tied_by_name,
    "_finalize_model_loading": _tying_without_arguments,
}


@contextmanager
def _sdp_flag_kept() -> Iterator[None]:
    """LLaDA's modelling file switches memory-efficient attention off for the whole process."""
    before: bool = torch.backends.cuda.mem_efficient_sdp_enabled()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        torch.backends.cuda.enable_mem_efficient_sdp(before)
