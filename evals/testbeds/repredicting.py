"""The sd testbed as a model that predicts the noise, the clean sample or the velocity: one network, its output converted."""

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from diffcache.evals.testbeds import zoo

Prediction = Literal["epsilon", "sample", "v_prediction"]


def sd_predicting(prediction: Prediction, *, edm: bool = False) -> Any:
    """A pipeline whose U-Net predicts this; its noise scheduler is the testbed's own, told so.

    With x = alpha * clean + sigma * noise the network's velocity v gives noise = alpha * v + sigma * x and
    clean = alpha * x - sigma * v. Full runs are those of the testbed, up to rounding.

    Args:
        prediction: what it is to predict.
        edm: timesteps are those of EDM's preconditioning, log(sigma) / 4.
    """
    pipe = zoo.load("sd")
    kind, alphas = type(pipe.unet), pipe.scheduler.alphas_cumprod.double().numpy()
    log_sigmas = np.log((1 - alphas) / alphas) / 2

    def forward(self: Any, sample: Tensor, timestep: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor]:
        kwargs["return_dict"] = False
        time = float(timestep.flatten()[0])
        if edm:
            time = float(np.interp(4 * time, log_sigmas, np.arange(len(alphas))))
        log_sigma = np.interp(time, np.arange(len(alphas)), log_sigmas)
        (velocity,) = kind.forward(self, sample, torch.tensor(time), *args, **kwargs)
        sigma, alpha = np.exp(log_sigma) / np.hypot(1, np.exp(log_sigma)), 1 / np.hypot(1, np.exp(log_sigma))
        match prediction:
            case "epsilon":
                return (alpha * velocity + sigma * sample,)
            case "sample":
                return (alpha * sample - sigma * velocity,)
            case _:
                return (velocity,)

    pipe.unet.__class__ = type(kind.__name__, (kind,), {"forward": forward})
    pipe.scheduler = type(pipe.scheduler).from_config(pipe.scheduler.config, prediction_type=prediction)
    return pipe
