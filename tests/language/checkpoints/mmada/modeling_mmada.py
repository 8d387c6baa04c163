"""A model in the form of MMaDA's: LLaDA's, with a configuration that knows nothing of the sizes."""

from typing import Any

from transformers import PretrainedConfig

from .modeling_llada import LLaDAModelLM


class MMadaConfig(PretrainedConfig):
    model_type = "mmada"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        for key in ("vocab_size", "llm_vocab_size", "codebook_size", "num_vq_tokens", "new_vocab_size"):
            if key in kwargs:
                setattr(self, key, kwargs[key])


class MMadaModelLM(LLaDAModelLM):
    config_class = MMadaConfig
    base_model_prefix = "model"
