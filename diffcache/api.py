"""The public functions: thin. What a user may pass for a method is read in `recipes.asked_for`."""

import logging
from collections.abc import Collection
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from diffcache.attach import attach
from diffcache.attach.attachment import diffusion_attachment_of, key_of
from diffcache.config import CacheConfig
from diffcache.hooks import attachments
from diffcache.host.compiled import each_uncompiled
from diffcache.host.components import check_call, denoisers_of, is_pipeline, modules_of, unknown_argument
from diffcache.language import attaching as language
from diffcache.language.recipes.base import LanguageConfig
from diffcache.language.recipes.builtin import LANGUAGE_DEFAULT
from diffcache.method_config import MethodConfig
from diffcache.planning.memory_bound import MemoryBound, check_bound
from diffcache.planning.plan import Plan, outline, plan_of
from diffcache.quantization.weights import put_back, quantised, quantised_parts, quantising, repaired
from diffcache.recipes.asked_for import asked_for, at_speedup, attachable, refuse_beside
from diffcache.recipes.builtin import DEFAULT
from diffcache.recipes.replay import ReplayConfig
from diffcache.recipes.with_rows import WithRows, source_of
from diffcache.schedulers.errors import ConfigError, TargetError
from diffcache.schedulers.schedule import Schedule

logger = logging.getLogger("diffcache")

Target = TypeVar("Target")


def accelerate(
    target: Target,
    config: MethodConfig | Schedule | str | Path | None = None,
    *,
    speedup: float | None = None,
    quality: float | None = None,
    quantize: Any = None,
    keep_original: bool = False,
    max_cache_bytes: int | None = None,
    rows: Any = None,
    components: Collection[str] | None = None,
    verbose: bool = False,
    **options: Any,
) -> Target:
    """Attaches a cache to a diffusion pipeline or denoiser, in place; on an accelerated one, replaces it.

    Args:
        target: a Diffusers pipeline (modular or not), a denoiser (any `torch.nn.Module` whose forward takes the noisy
            sample and the time) whose loop you write yourself with `denoising_run`, or a masked-diffusion language
            model, which `generate` samples from.
        config: None for the default method, a method's name ("easycache"; see `methods()`), a config object, a
            `Schedule`, the folder or hub id of whatever was saved (a config, a schedule, a calibration), or a YAML file with
            `method:` and its options.
        speedup: instead of an interval or a threshold: ticks of a run over computed ticks, at least (2.0 computes half).
        quality: instead of those: PSNR in dB to the full run that must be kept on most pictures. This measures first: see `tune`, to which
            `prompts=` (texts, or whole calls as dicts) and the call's own arguments are passed on.
        quantize: what the weights of linear layers are quantised to first: "int8", "float8", "mxfp8", "nvfp4"
            (activations too, at each call), "int8-weight-only", "float8-weight-only", "nvfp4-weight-only", "int4", "int4-hqq"
            (weights alone), a torchao config, Diffusers' `TorchAoConfig` or `BitsAndBytesConfig`, or a dict of these by
            regular expressions on layers' paths, with "_default" for the other layers and None for layers that are left as they
            are. A `PipelineQuantizationConfig` may name other components too, such as text encoders. A denoiser that is quantised
            already is left as it is. Corrections of the weights that a schedule was calibrated with are applied.
        keep_original: keep the replaced weights in CPU memory, for `restore` to put back.
        max_cache_bytes: how much a call of a pipeline may hold at once on its device. Where the method would hold more,
            features are kept in fewer bits, then in host memory, then at fewer sites; the report's notes say so. A call
            that differs from the last one in more than its seed is planned first (see `plan`), and refused (ConfigError)
            if even the smallest cache is larger.
        rows: compute some of the picture's tokens only, in most of the calls that the method computes: a bool mask [H, W] or
            [batch, H, W] at the picture's resolution (True is computed), a PIL picture of one (white is), "mask" for an
            inpainting pipeline's own `mask_image`, "context" for all but tokens that stand still between ticks (reference
            pictures, history), or "region" for what an edit changes (RegionE). A mask of another size is stretched over the
            picture, or over each frame of a clip. Other tokens are carried on from the last call of all tokens. See docs/rows.md.
        components: names of the pipeline's components to cache, ("unet", "controlnet") or ("controlnet",), all by this
            method; None: every denoiser. A control network is cached only if it is named here.
        verbose: print what was attached.
        **options: the method's own (`threshold=0.1`, `interval=3`, ...); for a schedule `resample=True`.

    Returns:
        The target itself.

    Raises:
        TargetError: there is nothing to attach to (a VAE, a text encoder), or Diffusers' own cache or cache-dit is active on it.
        ConfigError: an unknown method or option, or a value out of range.
        ScheduleError: nothing is saved there, or both a config and a schedule; a schedule that cannot be read; a schedule, or a
            config with measured values, that was made for another model.

    Either everything is attached or nothing: after an error the target is as it was.
    """
    if keep_original and quantize is None:
        raise ConfigError(
            "keep_original=True keeps the weights that quantize= replaces: pass quantize= as well."
        )
    if language.is_language(target):
        if any(
            option is not None for option in (speedup, quality, quantize, max_cache_bytes, rows, components)
        ):
            raise ConfigError(
                "speedup=, quality=, quantize=, max_cache_bytes=, rows= and components= are for diffusion pipelines: "
                "choose a language method instead."
            )
        usual = LANGUAGE_DEFAULT if config is not None else language.default_for(target, LANGUAGE_DEFAULT)
        chosen = _for_language(asked_for(config, options, usual, LanguageConfig))
        language.attach(target, chosen)
        if verbose:
            print(f"diffcache: {chosen} attached to {type(target).__name__}")
        return target
    if max_cache_bytes is not None:
        check_bound(target, max_cache_bytes)
    if quality is not None and components is not None:
        raise ConfigError(
            "quality= is measured with every denoiser cached: pass it without components=, or a method with them."
        )
    denoisers = each_uncompiled(denoisers_of(target, components))
    parts = quantised_parts(target, denoisers, quantize)
    with ExitStack() as undone_on_error:
        undone_on_error.enter_context(attach.put_back_on_error(target))
        if quantize is not None:
            undone_on_error.enter_context(quantising(parts, quantize, keep_original))
        if speedup is not None or quality is not None:
            config, options = _aimed(target, config, speedup, quality, options), {}
        resolved = attachable(config, options, DEFAULT, denoisers)
        if rows is not None:
            resolved = WithRows(base=resolved, source=source_of(rows))
        elif isinstance(resolved, ReplayConfig) and resolved.rows_left_out is not None:
            logger.warning(resolved.rows_left_out)
        if quantize is not None:
            undone_on_error.enter_context(repaired(denoisers, resolved))
        bound = None if max_cache_bytes is None else MemoryBound(resolved, max_cache_bytes, components)
        attach.attach(target, resolved, bound, components)
    if verbose:
        print(outline(resolved, denoisers_of(target, components)))
        for name, module in parts.items():
            if module in quantised:
                print(f"diffcache: {name} quantised: {quantised[module]}")
    return target


def method_for(
    denoiser: nn.Module,
    config: MethodConfig | Schedule | str | Path | None = None,
    *,
    speedup: float | None = None,
    **options: Any,
) -> CacheConfig:
    """The method that `accelerate` would attach to a denoiser for these arguments; nothing is attached.

    Raises:
        ConfigError, ScheduleError, TargetError: as `accelerate`.
    """
    if speedup is not None:
        config, options = at_speedup(config, speedup, options), {}
    return attachable(config, options, DEFAULT, each_uncompiled({"denoiser": denoiser}))


def method_named(
    config: MethodConfig | Schedule | str | Path | None = None,
    *,
    speedup: float | None = None,
    rows: Any = None,
    **options: Any,
) -> CacheConfig:
    """The method that `accelerate` would attach to some pipeline for these arguments; nothing is attached or checked against one.

    Raises:
        ConfigError, ScheduleError: as `accelerate`.
    """
    if speedup is not None:
        config, options = at_speedup(config, speedup, options), {}
    chosen = asked_for(config, options, DEFAULT, CacheConfig)
    if not isinstance(chosen, CacheConfig):
        raise ConfigError(f"{chosen.name} caches language models: choose a method for pipelines of pictures.")
    return chosen.resolved() if rows is None else WithRows(base=chosen.resolved(), source=source_of(rows))


def restore(target: Target) -> Target:
    """Removes everything that `accelerate` attached; a target that is not accelerated is returned as it is.

    Weights that it quantised are put back where `keep_original` was passed; else they stay quantised, which is logged.

    Raises:
        TargetError: it is a denoiser that is being served.
    """
    attach.detach(target)
    for module in modules_of(target):
        if module in quantised and not attachments.users_of(module) and not put_back(module):
            logger.warning(
                "%s: its cache is removed, its weights stay quantised: load it anew, or accelerate with keep_original=True.",
                type(module).__name__,
            )
    return target


def paused(target: Any) -> AbstractContextManager[None]:
    """A context in which calls of `target` compute everything and leave its report as it is; in this thread only.

    Raises:
        TargetError: it is not accelerated.
    """
    return attachments.paused(key_of(target))


def report(target: Any) -> Any:
    """The report of the target's last call, a RunReport, or a LanguageReport; an empty one before the first.

    Raises:
        TargetError: (a ValueError) the target is not accelerated.
    """
    return attach.report_of(target)


def methods() -> dict[str, type[MethodConfig]]:
    """Every registered method's config class by its name: for diffusion a CacheConfig, for language models a LanguageConfig."""
    return MethodConfig.methods()


def plan(
    target: Any,
    config: MethodConfig | Schedule | str | Path | None = None,
    *,
    speedup: float | None = None,
    **call: Any,
) -> Plan:
    """What `accelerate(target, config, speedup=speedup)` would cache in a call, compute of it and hold: before the run, and printable.

    This is a dry run of the call: texts are encoded and the noise scheduler steps, but the denoiser runs only once (for sites
    inside it, once for each guidance pass), and nothing is stored. The target is left as it is, accelerated or not. Of a
    call with several denoising loops the first is planned.

    Args:
        target: a Diffusers pipeline, or a denoiser.
        config: as for `accelerate`. None, without a speed-up: what is attached to the target already, else the default method.
        speedup: as for `accelerate`. Other options go into a config: `TrajectoryConfig(threshold=0.05)`.
        **call: the pipeline's arguments (`prompt=..., height=..., num_inference_steps=...`); of a denoiser, those of one
            forward call, and `num_steps` (and `sigmas`) of its loop.

    Raises:
        TargetError, ConfigError, ScheduleError: as `accelerate`; TargetError also for a language model, which has no plan.
    """
    if language.is_language(target):
        raise TargetError("plan() is for diffusion pipelines: run once and read report(model).")
    attachment = diffusion_attachment_of(target)
    if attachment is not None and config is None and speedup is None:
        chosen = attachment.config_for(target, call)
        _check_call(target, chosen.config, call)
        return plan_of(target, chosen.config, call, chosen.notes, attachment.components)
    if speedup is not None:
        config = at_speedup(config, speedup, {})
    resolved = attachable(config, {}, DEFAULT, each_uncompiled(denoisers_of(target)))
    _check_call(target, resolved, call)
    return plan_of(target, resolved, call)


def _check_call(target: Any, config: CacheConfig, call: Collection[str]) -> None:
    """Refuses arguments that the pipeline's call does not have, and a method's options among them."""
    if not is_pipeline(target):
        return
    name = unknown_argument(target, call)
    if name in config.options():
        raise ConfigError(
            f"plan() takes the arguments of a call: put {name}= into a config, {type(config).__name__}({name}=...)."
        )
    check_call(target, call)


def _for_language(config: MethodConfig) -> LanguageConfig:
    """The method that is attached to a language model."""
    if not isinstance(config, LanguageConfig):
        what = "a schedule" if isinstance(config, ReplayConfig) else config.name
        raise ConfigError(
            f"{what} caches a denoiser of pictures: choose a method for language models, such as elastic-cache or "
            "dkv-decode."
        )
    return config


def _aimed(
    target: Any, config: Any, speedup: float | None, quality: float | None, options: dict[str, Any]
) -> MethodConfig | Schedule:
    """The method for a speed-up or a quality that was asked for."""
    if speedup is not None and quality is None:
        return at_speedup(config, speedup, options)
    refuse_beside(speedup)
    refuse_beside(config)
    if "prompts" not in options:
        raise ConfigError(
            "quality= is measured on your prompts: pass prompts=[...] as well, or a schedule from diffcache.tune()."
        )
    from diffcache.profiling.tuning.tune import tune  # only needed where something is measured

    found: MethodConfig | Schedule = tune(target, quality=quality, **options)
    return found
