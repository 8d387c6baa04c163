"""A cache for each request in vLLM-Omni: what its runner would do besides. Nothing is run here: `tests/server/test_docs.py` does."""

from typing import Any


class CachedSteps:
    """A runner's part: `pipeline` has prepare_encode, denoise_step, step_scheduler and post_decode."""

    def __init__(self, pipeline: Any, server: Any) -> None:
        self.pipeline, self.server = pipeline, server
        self.requests: dict[str, Any] = {}

    def admit(self, state: Any) -> None:
        self.pipeline.prepare_encode(state)
        self.requests[state.request_id] = self.server.request(
            len(state.timesteps), noise_scheduler=state.scheduler, **state.sampling.cache
        )

    def step(self, input_batch: Any) -> None:
        states = input_batch.states
        with self.server.batch([(self.requests[s.request_id], s.step_index) for s in states]):
            predictions = self.pipeline.denoise_step(input_batch)
        for state, prediction in zip(states, predictions.split(1), strict=True):
            self.pipeline.step_scheduler(state, prediction)
            if state.step_index == len(state.timesteps):
                self.requests.pop(state.request_id).finish()

    def abort(self, request_id: str) -> None:
        self.requests.pop(request_id).abort()
