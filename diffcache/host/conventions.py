"""Names in other people's code by which we recognise what their objects do not tell otherwise."""

TIMES = frozenset({"t", "r", "time", "times", "sigma", "sigmas", "noise_level", "noise_labels"})
"""Names of a denoiser's time arguments that do not contain "timestep"."""

CONDITIONAL_FIRST = frozenset({"DiTTransformer2DModel", "LuminaNextDiT2DModel"})
"""Denoisers whose pipelines put the conditional half of a batch first; all others put it second."""

CONDITIONAL, UNCONDITIONAL = "cond", "uncond"
"""The names that pipelines give their guidance passes, where they give any. The second one's contains "uncond"."""

UNCONDITIONAL_DENOISER = "unconditional"
"""A pipeline's second denoiser whose name begins so computes the unconditional pass of every step (Ideogram 4)."""

ROW_COUNTING = "PAG"
"""Part of the class names of Diffusers' attention processors for perturbed-attention guidance. They find the guidance
passes by counting rows of the batch, so a call with some of the rows gives wrong results."""

FOREIGN_HOOKS = frozenset(
    {
        "diffusers.hooks.first_block_cache",
        "diffusers.hooks.faster_cache",
        "diffusers.hooks.mag_cache",
        "diffusers.hooks.pyramid_attention_broadcast",
        "diffusers.hooks.sea_cache",
        "diffusers.hooks.taylorseer_cache",
        "diffusers.hooks.text_kv_cache",
    }
)
"""Modules of Diffusers' hooks that cache features."""

ADAPTER_MARKS = ("_hf_peft_config_loaded", "encoder_hid_proj", "image_proj")
"""Attributes of a denoiser that are set while adapters are loaded: LoRA's first, then IP-Adapter's two."""

OTHER_SCALES = ("skip_layer_", "distilled_")
"""Scales of guidance that begin so multiply something else than the difference of the conditional and unconditional outputs."""

KEPT_SCALE = "_guidance_scale"
"""The attribute in which a pipeline keeps its scale of guidance during a call."""

ADDED_TO_CONDITIONAL = ("Cosmos", "Krea2", "ZImage")
"""Pipelines whose names begin so add the scaled difference of the outputs to the conditional one: elsewhere their scale is larger by one."""

KEEPS_NORM = {"QwenImage": -1, "NucleusMoE": -1, "JoyImage": 2}
"""Pipelines whose names begin so give the guided output the norm of the conditional one, along this dimension."""

NORM_SWITCHES = ("cfg_normalization", "enable_cfg_renorm")
"""Arguments by which a pipeline is told to do so, along the last dimension (Lumina 2, LongCat-Image)."""

FREE_NORM = ("QwenImage21", "ZImage")
"""Pipelines whose names begin so do not keep the norm: QwenImage21, though its name begins like QwenImage, and Z-Image, whose argument sets only a bound."""

RESCALED = "guidance_rescale"
"""The argument that says how far a pipeline rescales guided outputs."""

NEGATIVES = ("negative_prompt", "negative_prompt_embeds")
"""Pipelines of networks that are told their guidance guide by a second pass only if one of these is given."""

_RESIDUALS_OF_CONTROL = (
    "additional_residual",
    "controlnet_block_samples",
    "controlnet_single_block_samples",
    "controlnet_hidden_states",
)


def is_residual_of_control(path: str) -> bool:
    """Whether a denoiser's argument, by its path, is what a ControlNet computes anew at every tick."""
    return any(part in path for part in _RESIDUALS_OF_CONTROL)
