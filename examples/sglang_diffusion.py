"""A cache for each request in SGLang diffusion: what its stage would do besides. Nothing is run here: `tests/server/test_docs.py` does."""

from typing import Any


class CachedStage:
    """A stage's part: `stage` has _prepare_denoising_loop and _run_denoising_step."""

    def __init__(self, stage: Any, server: Any) -> None:
        self.stage, self.server = stage, server

    def prepare(self, batch: Any, server_args: Any) -> Any:
        ctx = self.stage._prepare_denoising_loop(batch, server_args)
        ctx.cache = self.server.request(
            len(ctx.timesteps),
            noise_scheduler=ctx.scheduler,
            guidance="apart" if batch.do_classifier_free_guidance else None,
            **batch.cache,
        )
        return ctx

    def run_step(self, ctx: Any, step: Any, batch: Any, server_args: Any) -> None:
        with self.server.batch([(ctx.cache, step.step_index)], rows_per_request=len(ctx.latents)):
            self.stage._run_denoising_step(ctx, step, batch, server_args)
