"""Training of the classifier of Fashion-MNIST."""

from __future__ import annotations

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from diffcache.evals.testbeds.fashion_mnist import TEST_FEATURES, FashionClassifier
from diffcache.evals.training import fashion_pictures
from diffcache.evals.training.loop import Pace, Progress, Training, fit
from diffcache.evals.training.optim import Optimiser

_BATCH = 128


def train(training: Training) -> Progress:
    """Trains on mirrored and moved pictures with a little noise, prints the test accuracy, and saves to `training.out`."""
    torch.manual_seed(training.seed)
    device = training.device
    model = FashionClassifier().to(device)
    pictures, labels = fashion_pictures.pictures(training.work)

    def loss(generator: torch.Generator) -> Tensor:
        rows = torch.randint(len(pictures), (_BATCH,), generator=generator, device=device).cpu()
        pixels = pictures[rows].to(device).float() / 255
        mirrored = torch.rand(_BATCH, 1, 1, 1, generator=generator, device=device) < 0.5
        pixels = torch.where(mirrored, pixels.flip(-1), pixels)
        down, right = torch.randint(-2, 3, (2,), generator=generator, device=device).tolist()
        noise = torch.randn(pixels.shape, generator=generator, device=device) * 0.03
        scores = model.logits((pixels.roll((down, right), (-2, -1)) + noise).clamp(0, 1))
        return functional.cross_entropy(scores, labels[rows].to(device), label_smoothing=0.05)

    optimiser = Optimiser(model, lambda name, p: p.ndim >= 2 and min(p.shape[:2]) >= 16)
    progress = fit(model, loss, optimiser, Pace(lr=3e-3), training)
    model.eval().cpu().save(training.out)
    pictures, labels = fashion_pictures.pictures(training.work, "t10k")
    with torch.no_grad():
        features = torch.cat([model(part) for part in torch.split(pictures, 500)])
        accuracy = float((model.head(features).argmax(1) == labels).float().mean())
    print(f"accuracy on the 10,000 test pictures: {accuracy:.3f}")
    save_file({"features": features.half()}, training.out / TEST_FEATURES)
    return progress
