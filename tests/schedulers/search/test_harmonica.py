"""Training of a router: what it reaches on the toy, and that it resumes to the bit."""

from __future__ import annotations

from pathlib import Path
from threading import Barrier, Thread

import pytest
import torch
from support.searches.toy import Toy, ToyDenoiser
from torch import Tensor

from diffcache.schedulers.errors import ConfigError, ScheduleError
from diffcache.schedulers.search.checkpoint import load_checkpoint, save_checkpoint
from diffcache.schedulers.search.harmonica import KIND, Progress, Trainer, Training, image_error_proxy
from diffcache.schedulers.search.router import BOUND, Gates, Router, within_budget


def fitted(router: Router, toy: Toy, training: Training) -> list[Progress]:
    return list(Trainer(router, toy.prices, training).train([ToyDenoiser(toy)]))


def random_router(toy: Toy, seed: int = 0) -> Router:
    return Router(torch.randn(toy.ticks, toy.sites, generator=torch.Generator().manual_seed(seed)))


def test_training_sees_the_exported_network() -> None:
    toy = Toy()
    router, denoiser = random_router(toy), ToyDenoiser(toy)
    with torch.no_grad():
        latents = denoiser.run(0, Gates(router.scores()), None)
    rng = torch.Generator().manual_seed(1000)
    toy.noise = torch.randn(toy.noise.shape, generator=rng, dtype=torch.float64)
    torch.testing.assert_close(latents, toy.run(router.table().unsqueeze(0))[0][0])


def test_the_first_tick_is_always_computed() -> None:
    toy = Toy()
    router = Router(torch.full((toy.ticks, toy.sites), -BOUND))
    before = router.logits[0].clone()
    fitted(router, toy, Training(target=0.3, runs=3))
    assert router.table()[0].all()
    assert torch.equal(router.logits[0], before)


def test_the_image_error_proxy_is_zero_at_ticks_that_are_computed() -> None:
    toy = Toy()
    table = torch.zeros(toy.ticks, toy.sites, dtype=torch.bool)
    table[[0, 5]] = True
    proxy = image_error_proxy(Router.of_table(table), [ToyDenoiser(toy)], 0, lambda tensor: tensor)
    assert proxy[0] == proxy[5] == 0
    assert float(proxy[1:].mean()) == pytest.approx(1)


@pytest.mark.slow
def test_training_reaches_its_target_and_beats_random_tables() -> None:
    toy = Toy()
    routers = [random_router(toy, seed) for seed in range(2)]
    for router in routers:
        last = fitted(router, toy, Training(target=0.5, runs=300, lr=0.05))[-1]
        assert last.share == pytest.approx(0.5, abs=0.1)
    budget = sum(toy.prices) * toy.ticks // 2
    tables = torch.stack([within_budget(router.scores().detach(), toy.prices, budget) for router in routers])
    chance = torch.rand(100, toy.ticks, toy.sites, generator=torch.Generator().manual_seed(0)) < 5 / 11
    chance[:, 0] = True
    assert toy.evaluate(tables)[:, 0].mean() < toy.evaluate(chance)[:, 0].median() - 3


def test_a_training_resumes_to_the_bit(tmp_path: Path) -> None:
    toy, training, path = (
        Toy(),
        Training(target=0.5, runs=8, lr=0.1, proxy_every=3),
        tmp_path / "router.safetensors",
    )
    whole = Trainer(random_router(toy), toy.prices, training)
    for progress in whole.train([ToyDenoiser(toy)]):
        if progress.run == 4:
            whole.save(path)
    resumed = Trainer(random_router(toy, seed=9), toy.prices, training)
    resumed.load(path)
    assert resumed.run == 5
    assert [progress.run for progress in resumed.train([ToyDenoiser(toy)])] == [5, 6, 7]
    assert torch.equal(resumed.router.logits, whole.router.logits)
    with pytest.raises(ScheduleError, match="not a checkpoint of this router"):
        Trainer(Router(torch.zeros(3, 2)), toy.prices, training).load(path)


def test_a_file_of_before_which_also_has_a_threshold_is_loaded(tmp_path: Path) -> None:
    toy, training, path = Toy(), Training(target=0.5), tmp_path / "router.safetensors"
    Trainer(random_router(toy), toy.prices, training).save(path)
    tensors, settings = load_checkpoint(path, KIND)
    save_checkpoint(path, KIND, tensors, {**settings, "run": 3, "threshold": 0.5})
    resumed = Trainer(random_router(toy, seed=9), toy.prices, training)
    resumed.load(path)
    assert resumed.run == 3
    assert torch.equal(resumed.router.logits, random_router(toy).logits)


def test_several_processes_train_the_same_router_as_one() -> None:
    """Each on half of the batch, averaging as they go (two threads stand in for processes)."""
    toy, training = Toy(), Training(target=0.5, runs=6, lr=0.1, proxy_every=3)
    alone = random_router(toy)
    fitted(alone, toy, training)

    routers = [random_router(toy) for _ in range(2)]
    barrier, posted = Barrier(2), [torch.empty(0)] * 2

    def work(rank: int) -> None:
        def average(tensor: Tensor) -> Tensor:
            posted[rank] = tensor.clone()
            barrier.wait()
            mean = torch.stack(posted).mean(0)
            barrier.wait()
            return mean

        half = ToyDenoiser(toy, slice(2 * rank, 2 * rank + 2))
        list(Trainer(routers[rank], toy.prices, training).train([half], average))

    threads = [Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.equal(routers[0].logits, routers[1].logits)
    torch.testing.assert_close(routers[0].logits, alone.logits, rtol=1e-4, atol=1e-5)


def test_a_target_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="target: 0 is not a share"):
        Training(target=0)
