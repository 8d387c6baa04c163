"""How the measurements of speed attach cache-dit, the real package."""

from typing import Any

from torch import nn

NEARLY_NEVER = 1e-9
"""A threshold below which no two outputs are alike. At 0.0 cache-dit does not look at its signal at all."""
NEVER_REUSING: dict[str, Any] = {"residual_diff_threshold": NEARLY_NEVER, "max_warmup_steps": 0}
"""Settings with which every tick is computed."""


def attach_cache_dit(
    net: nn.Module, method: str, front: int, *, taylor: bool = False, **settings: Any
) -> None:
    """Attaches DBCache, or DBPrune, which stores the output of every block but the front.

    Args:
        net: the denoiser.
        method: its name.
        front: blocks that are always computed; there are none behind.
        taylor: reused values are extrapolated by TaylorSeer of order 1.
        **settings: others of the method.
    """
    import cache_dit

    config = getattr(cache_dit, f"{method}Config")(Fn_compute_blocks=front, Bn_compute_blocks=0, **settings)
    more = {"calibrator_config": cache_dit.TaylorSeerCalibratorConfig(taylorseer_order=1)} if taylor else {}
    cache_dit.enable_cache(net, cache_config=config, **more)
