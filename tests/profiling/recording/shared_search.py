"""What `test_shared_renders.py` runs in one process and in two: a short evolution and a short training."""

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from support.searches.flux_calls import FLUX, flux_calls

from diffcache.profiling.recording.processes import is_first, place
from diffcache.profiling.recording.record import record
from diffcache.profiling.searching.evolving import Budget, EvolutionSettings, evolve
from diffcache.profiling.searching.routing import train_router
from diffcache.profiling.searching.scoring import Scorer
from diffcache.profiling.searching.space import Space
from diffcache.schedulers.search.harmonica import Training

STEPS = 4


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    pipe, calls = FLUX.build(), flux_calls(STEPS)
    space = Space(record(pipe, calls, sites="sub-layer"))
    scorer, settings = Scorer(pipe, calls, space), EvolutionSettings(children=5)
    search = evolve(scorer, folder / "evolved", Budget(generations=3), settings)
    router = train_router(
        pipe, calls, space, folder / "routed", Training(target=0.5, runs=3, lr=0.1, proxy_every=2)
    )
    if is_first():
        processes = torch.tensor(int(place().split()[-1]))
        found = {"tables": search.tables, "scores": search.scores, "logits": router.logits.detach()}
        found["processes"] = processes
        save_file({name: tensor.contiguous() for name, tensor in found.items()}, folder / "found.safetensors")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
