"""Tiny checkpoints in the form of those that people run, written to disk: modelling files, config.json, safetensors.

The modelling files (`checkpoints/`) have the published names and the idioms that transformers 5 breaks, and none of the
published code.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig
from transformers.dynamic_module_utils import get_class_from_dynamic_module

from diffcache.language.remote_code import transformers_4

FILES = Path(__file__).parent / "checkpoints"
MASK, EOS, VOCABULARY = 1, 2, 40

FORMS: dict[str, tuple[list[str], dict[str, str], dict[str, Any]]] = {
    "llada": (
        ["llada/configuration_llada.py", "llada/modeling_llada.py"],
        {
            "AutoConfig": "configuration_llada.LLaDAConfig",
            "AutoModel": "modeling_llada.LLaDAModelLM",
            "AutoModelForCausalLM": "modeling_llada.LLaDAModelLM",
        },
        {"model_type": "llada", "use_cache": False, "d_model": 32, "n_heads": 4, "n_layers": 3},
    ),
    "mmada": (
        ["llada/configuration_llada.py", "llada/modeling_llada.py", "mmada/modeling_mmada.py"],
        {
            "AutoConfig": "modeling_mmada.MMadaConfig",
            "AutoModelForCausalLM": "modeling_mmada.MMadaModelLM",
        },
        {
            "model_type": "mmada",
            "use_cache": False,
            "codebook_size": 8,
            "d_model": 32,
            "n_heads": 4,
            "n_kv_heads": 2,
            "n_layers": 3,
            "mlp_hidden_size": 48,
            "block_type": "llama",
            "rope_theta": 10000.0,
            "rope_full_precision": True,
            "input_emb_norm": False,
            "scale_logits": False,
            "weight_tying": False,
            "embedding_size": VOCABULARY,
            "max_sequence_length": 128,
            "rms_norm_eps": 1e-5,
            "attention_layer_norm": False,
            "init_device": None,
        },
    ),
    "dream": (
        ["dream/configuration_dream.py", "dream/modeling_dream.py", "dream/generation_utils.py"],
        {"AutoConfig": "configuration_dream.DreamConfig", "AutoModel": "modeling_dream.DreamModel"},
        {"model_type": "Dream", "tie_word_embeddings": False},
    ),
    "llada-moe": (
        ["llada_moe/configuration_lladamoe.py", "llada_moe/modeling_lladamoe.py"],
        {
            "AutoConfig": "configuration_lladamoe.LLaDAConfig",
            "AutoModel": "modeling_lladamoe.LLaDAMoEModelLM",
            "AutoModelForCausalLM": "modeling_lladamoe.LLaDAMoEModelLM",
        },
        {"model_type": "llada", "shared_expert_intermediate_size": 16},
    ),
    "llada2": (
        ["llada2/configuration_llada2_moe.py", "llada2/modeling_llada2_moe.py"],
        {
            "AutoConfig": "configuration_llada2_moe.LLaDA2MoeConfig",
            "AutoModel": "modeling_llada2_moe.LLaDA2MoeModel",
            "AutoModelForCausalLM": "modeling_llada2_moe.LLaDA2MoeModelLM",
        },
        {"model_type": "llada2_moe"},
    ),
    "sdar": (
        ["sdar/configuration_sdar.py", "sdar/modeling_sdar.py"],
        {
            "AutoConfig": "configuration_sdar.SDARConfig",
            "AutoModel": "modeling_sdar.SDARModel",
            "AutoModelForCausalLM": "modeling_sdar.SDARForCausalLM",
        },
        {"model_type": "sdar", "block_size": 4},
    ),
    "fast-dllm-v2": (
        ["fast_dllm_v2/configuration.py", "fast_dllm_v2/modeling.py"],
        {
            "AutoConfig": "configuration.Fast_dLLM_QwenConfig",
            "AutoModel": "modeling.Fast_dLLM_QwenModel",
            "AutoModelForCausalLM": "modeling.Fast_dLLM_QwenForCausalLM",
        },
        {"model_type": "Fast_dLLM_Qwen", "tie_word_embeddings": True, "bd_size": 8},
    ),
}
"""Each form's files, which class is which, and its configuration."""


def write(form: str, folder: Path, **options: Any) -> Path:
    """A checkpoint of random weights; returns its folder."""
    files, classes, config = FORMS[form]
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        shutil.copy(FILES / file, folder)
    special = {"vocab_size": VOCABULARY, "mask_token_id": MASK, "eos_token_id": EOS, "pad_token_id": 0}
    names = {
        "architectures": [classes["AutoModelForCausalLM" if form != "dream" else "AutoModel"].split(".")[1]]
    }
    written = {"auto_map": classes, "torch_dtype": "float32", **names, **special, **config, **options}
    (folder / "config.json").write_text(json.dumps(written))
    if form == "dream":
        (folder / "generation_config.json").write_text(json.dumps(special))
    model = own_class(folder)
    weights = model.state_dict()
    generator = torch.Generator().manual_seed(0)
    for name in sorted(weights):
        weight = weights[name]
        size = 0.2 if weight.ndim >= 2 else 0.1
        weight.copy_(
            torch.randn(weight.shape, generator=generator) * size + (weight.ndim < 2 and "bias" not in name)
        )
    if written.get("tie_word_embeddings"):
        weights.pop("lm_head.weight")
    save_file({name: weight.contiguous() for name, weight in weights.items()}, folder / "model.safetensors")
    return folder


def own_class(folder: Path) -> Any:
    """The model as its modelling file builds it, not loaded by transformers: random weights."""
    with transformers_4():
        config = AutoConfig.from_pretrained(folder, trust_remote_code=True)
        config.use_cache = getattr(config, "use_cache", False)
        name = config.auto_map.get("AutoModelForCausalLM", config.auto_map.get("AutoModel"))
        return get_class_from_dynamic_module(name, folder)(config).eval()


def by_hand(folder: Path) -> Any:
    """The model as its modelling file builds it, with the checkpoint's weights put in by torch alone."""
    model = own_class(folder)
    weights = load_file(folder / "model.safetensors")
    if getattr(model.config, "tie_word_embeddings", False) and hasattr(model, "lm_head"):
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict(weights)
    return model
