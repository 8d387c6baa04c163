"""Morphing between two pictures over observers (CHIMERA, arXiv 2512.07155): nothing in the engine is made for it.

Both pictures are inverted to noise, and what each block gives on the way is recorded. A picture in between is denoised from noise in
between, while blocks' outputs are blended with those that were recorded:

    output + weight * (slerp(recorded of A, recorded of B, alpha) - output)

For the first fifth of the steps an anchor, the words that both prompts have in common, is put beside the texts.

    python examples/chimera.py --out morph.png

`--result evals/results/chimera/flux.json` keeps the figures too, for the table in docs/measured/video.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diffcache import accelerate, denoising_run, restore
from diffcache.engine.observers import Observer, observed
from diffcache.evals.harness.provenance import header
from diffcache.evals.harness.results import write_result
from diffcache.evals.testbeds import procedural, zoo
from diffcache.evals.testbeds.shape_classifier import ShapeColourClassifier
from diffcache.evals.training.grids import save_grid
from diffcache.schedulers.steps import Step

PAIRS = (
    ("a large red ring centre on a dark background", "a large blue ring centre on a dark background"),
    ("a large yellow square centre on a grey background", "a large green square centre on a grey background"),
    ("a large white star centre on a dark background", "a large purple star centre on a dark background"),
)
SEEDS = (0, 1)
"""Of the noise of each pair; the strips show the first."""
STEPS, WEIGHT, ANCHORED, INJECTED = 50, 0.4, 0.2, 0.6
"""Ticks, weight of what was recorded, and in which share of the ticks there are anchors and injections."""
EVERY_TICK = {"interval": 1, "site": "block"}
"""Every block is computed at every tick: a recorder is told of all."""
ONCE = {"interval": 10**6, "warmup_steps": 1, "tail_steps": 0, "site": "block"}
"""Every block would be reused from the second tick on. In a shadow it is computed, and the observer says what the run goes on with."""

Recording = dict[tuple[str, int], list[Tensor]]
"""The outputs of a block at a noise level, by its site and the level's index."""


def _between(pair: Tensor, alphas: Tensor) -> Tensor:
    """On the straight line between two: [n, ...]."""
    return torch.lerp(pair[:1], pair[1:], alphas.view(-1, *[1] * (pair.ndim - 1)))


def slerp(a: Tensor, b: Tensor, alpha: Tensor) -> Tensor:
    """From a to b on the sphere, along the last dimension; alpha broadcasts."""
    cosine = torch.nn.functional.cosine_similarity(a, b, dim=-1)[..., None].clamp(-1 + 1e-6, 1 - 1e-6)
    angle = cosine.arccos()
    return ((1 - alpha) * angle).sin() / angle.sin() * a + (alpha * angle).sin() / angle.sin() * b


class Recorder(Observer):
    """Keeps what blocks give.

    Args:
        levels: index of the noise level at each tick.
    """

    def __init__(self, levels: Sequence[int]) -> None:
        self.levels = levels
        self.recording: Recording = {}

    def computed(
        self, denoiser: str, step: Step, features: Sequence[Tensor], outputs: Sequence[Tensor], stream: int
    ) -> None:
        self.recording[step.site, self.levels[step.tick]] = [output.clone() for output in outputs]


class Injector(Observer):
    """Blends what blocks give with what was recorded of two pictures.

    Args:
        recording: of both pictures in one batch.
        levels: index of the noise level at each tick.
        alphas: how far each sample of the batch is from the first picture to the second.
        weight: of what was recorded.
        tokens: of the picture; texts are left alone.
    """

    shadow = True

    def __init__(
        self, recording: Recording, levels: Sequence[int], alphas: Tensor, weight: float, tokens: int
    ) -> None:
        self.recording = recording
        self.levels = levels
        self.alphas = alphas[:, None, None]
        self.weight = weight
        self.tokens = tokens
        self.injections = 0

    def predicted(
        self,
        denoiser: str,
        step: Step,
        guess: Sequence[Tensor],
        truth: Sequence[Tensor],
        features: Sequence[Tensor],
    ) -> Sequence[Tensor]:
        recorded = self.recording.get((step.site, self.levels[step.tick]))
        if recorded is None or step.tick >= INJECTED * len(self.levels):
            return truth
        self.injections += 1
        return [self._blended(out, kept) for out, kept in zip(truth, recorded, strict=True)]

    def _blended(self, output: Tensor, recorded: Tensor) -> Tensor:
        """The picture's tokens, which are the last, blended."""
        if output.shape[1] < self.tokens:
            return output
        own, past = output[:, -self.tokens :], recorded[:, -self.tokens :]
        between = slerp(past[:1], past[1:], self.alphas)
        return torch.cat((output[:, : -self.tokens], own + self.weight * (between - own)), 1)


@dataclass(frozen=True)
class Text:
    """What the transformer is told: [batch, tokens, channels] and [batch, channels]."""

    states: Tensor
    pooled: Tensor


class Morph:
    """Two pictures, inverted, and what lies between them.

    Args:
        pipe: a Flux pipeline.
        prompts: of both.
        seed: of both pictures' noise.
    """

    def __init__(self, pipe: Any, prompts: tuple[str, str], seed: int = 0) -> None:
        self.pipe, self.denoiser = pipe, pipe.transformer
        common = [word for word in prompts[0].split() if word in prompts[1].split()]
        self.text, self.anchor = self._encoded(list(prompts)), self._encoded([" ".join(common)])
        call = zoo.call_for("flux", list(prompts), [seed, seed], STEPS)
        pictures = pipe(**call | {"true_cfg_scale": 1.0, "output_type": "latent"})[0]
        self.tokens = pictures.shape[1]
        self.levels = torch.linspace(0, 1, STEPS + 1).tolist()  # ascending
        self.noise, self.recording = self._inverted(pictures)

    def between(self, alphas: Tensor, weight: float) -> tuple[Tensor, int]:
        """Pictures [n, 3, 64, 64] with injections of a weight, and how many of these there were."""
        injector = Injector(self.recording, [*range(STEPS, 0, -1)], alphas, weight, self.tokens)
        with self._attached(ONCE), observed(injector):
            return self.alone(alphas), injector.injections

    @torch.no_grad()
    def alone(self, alphas: Tensor) -> Tensor:
        """Pictures [n, 3, 64, 64] of noise and texts in between."""
        indices = [*range(STEPS, 0, -1)]
        text = Text(*(_between(part, alphas) for part in (self.text.states, self.text.pooled)))
        anchor = self.anchor.states.expand(len(alphas), -1, -1)
        anchored = Text(torch.cat((text.states, anchor), 1), text.pooled)
        first = slerp(self.noise[:1].flatten(1), self.noise[1:].flatten(1), alphas[:, None])
        latents = first.unflatten(1, self.noise.shape[1:])
        with denoising_run(self.denoiser, STEPS) as run:
            for i, index in enumerate(indices):
                run.begin_step(i)
                velocity = self._velocity(latents, index, anchored if i < ANCHORED * STEPS else text)
                latents = latents + (self.levels[index - 1] - self.levels[index]) * velocity
        return self._decoded(latents)

    @torch.no_grad()
    def _inverted(self, latents: Tensor) -> tuple[Tensor, Recording]:
        """The noise that both pictures come from, and what blocks gave on the way there."""
        indices = [*range(STEPS)]
        recorder = Recorder(indices)
        with self._attached(EVERY_TICK), observed(recorder), denoising_run(self.denoiser, STEPS) as run:
            for i in indices:
                run.begin_step(i)
                latents = latents + (self.levels[i + 1] - self.levels[i]) * self._velocity(
                    latents, i, self.text
                )
        return latents, recorder.recording

    def _velocity(self, latents: Tensor, index: int, text: Text) -> Tensor:
        batch = len(latents)
        side = round(self.tokens**0.5)
        rows = torch.arange(side).repeat_interleave(side)
        columns = torch.arange(side).repeat(side)
        velocity: Tensor = self.denoiser(
            hidden_states=latents,
            timestep=torch.full((batch,), self.levels[index]),
            pooled_projections=text.pooled,
            encoder_hidden_states=text.states,
            txt_ids=torch.zeros(text.states.shape[1], 3),
            img_ids=torch.stack((torch.zeros(side * side), rows.float(), columns.float()), 1),
            return_dict=False,
        )[0]
        return velocity

    def _encoded(self, prompts: list[str]) -> Text:
        with torch.no_grad():
            states, pooled, _ = self.pipe.encode_prompt(prompt=prompts, prompt_2=None, max_sequence_length=20)
        return Text(states, pooled)

    def _decoded(self, latents: Tensor) -> Tensor:
        vae = self.pipe.vae
        unpacked = self.pipe._unpack_latents(latents, 64, 64, self.pipe.vae_scale_factor)
        pixels = vae.decode(unpacked / vae.config.scaling_factor + (vae.config.shift_factor or 0.0)).sample
        pictures: Tensor = (pixels / 2 + 0.5).clamp(0, 1)
        return pictures

    @contextmanager
    def _attached(self, options: dict[str, Any]) -> Iterator[None]:
        accelerate(self.denoiser, "uniform", **options)
        try:
            yield
        finally:
            restore(self.denoiser)


def share_of_second(pictures: Tensor, prompts: tuple[str, str]) -> list[float]:
    """How much more each picture looks like the second colour than like the first, 0 to 1, as the classifier sees it."""
    colours = [procedural.label_of(prompt) % len(procedural.COLOURS) for prompt in prompts]
    chances = ShapeColourClassifier.load().logits(pictures).softmax(1)
    by_colour = chances.unflatten(1, (-1, len(procedural.COLOURS))).sum(1)[:, colours]
    shares: list[float] = (by_colour[:, 1] / by_colour.sum(1)).tolist()
    return shares


def largest_step(pictures: Tensor) -> float:
    """The largest step between neighbours, over the mean one: 1 for an even morph."""
    steps = (pictures[1:] - pictures[:-1]).flatten(1).norm(dim=1)
    return float(steps.max() / steps.mean())


def measured(
    pipe: Any, prompts: tuple[str, str], seed: int, pictures: int
) -> tuple[list[dict[str, Any]], Tensor]:
    """A row for each way from one picture to the other, and the pictures of all ways, [2 * pictures, 3, 64, 64]."""
    morph, alphas = Morph(pipe, prompts, seed), torch.linspace(0, 1, pictures)
    alone, (injected, injections) = morph.alone(alphas), morph.between(alphas, WEIGHT)
    changed = float((morph.between(alphas, 0.0)[0] - alone).abs().max())
    rows = []
    for way, strip in (("latent slerp alone", alone), (f"injection, weight {WEIGHT:g}", injected)):
        shares = share_of_second(strip, prompts)
        row = {
            "pair": f"{prompts[0]} to {prompts[1].split()[2]}",
            "seed": seed,
            "way": way,
            "shares": [round(share, 3) for share in shares],
            "largest_fall": round(max(0.0, *(a - b for a, b in pairwise(shares))), 4),
            "largest_step": round(largest_step(strip), 3),
        }
        rows.append(row | {"changed_by_weight_0": changed, "injections": injections})
    return rows, torch.cat((alone, injected))


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--out", type=Path, default=Path("outputs/morph.png"))
    options.add_argument("--pictures", type=int, default=7, help="of each strip, the two ends included")
    options.add_argument("--result", type=Path, help="a JSON file for the figures")
    args = options.parse_args()
    if args.pictures < 2:
        options.error("--pictures: a strip has two ends, so give at least 2")
    torch.set_num_threads(1)
    pipe, rows, strips = zoo.load("flux"), list[dict[str, Any]](), []
    for seed, prompts in product(SEEDS, PAIRS):
        new, pictures = measured(pipe, prompts, seed, args.pictures)
        rows += new
        strips += [pictures] * (seed == SEEDS[0])
        for row in new:
            print(f"{row['pair']}, {row['way']}: {row['shares']}, {row['largest_step']}", flush=True)
    save_grid(torch.cat(strips), args.out, columns=args.pictures)
    if args.result is not None:
        write_result(args.result, header(), {"testbed": "flux", "pictures": args.pictures, "rows": rows})


if __name__ == "__main__":
    main()
