"""Pipelines by name: a testbed, a folder or a hub id; how they are loaded, and how they are called."""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from diffusers import DiffusionPipeline

from diffcache.evals.errors import EvaluationError
from diffcache.evals.testbeds import shipped, zoo
from diffcache.host.compiled import each_uncompiled
from diffcache.host.components import check_call, denoisers_of
from diffcache.profiling.recording.calling import Call
from diffcache.quantization.weights import quantising

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
OFFLOADS = ("none", "model", "sequential", "group")
"""How weights wait in host memory, as Diffusers calls it: whole components, single layers, or groups of layers."""

FRAMES = ("num_frames", "video_length")
"""What pipelines call their number of frames."""

PICTURE_FILES = (".png", ".jpg", ".jpeg", ".webp")


@dataclass(frozen=True)
class Source:
    """A pipeline by name, and how it is loaded and called.

    Attributes:
        model: a testbed, a folder or a hub id.
        dtype: a name of `DTYPES`, or "auto": bfloat16 on a GPU, else float32. Every component has it.
        offload: of `OFFLOADS`.
        quantize: as for `accelerate`; the weights are quantised once, before anything is rendered.
        steps: None: the pipeline's own default.
        size: (width, height) in pixels; None: the pipeline's own.
        frames: of a video; None: the pipeline's own.
        guidance: `guidance_scale`; None: the pipeline's own.
        call: other arguments of every call.
    """

    model: str
    dtype: str = "auto"
    offload: str = "none"
    quantize: Any = None
    steps: int | None = None
    size: tuple[int, int] | None = None
    frames: int | None = None
    guidance: float | None = None
    call: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_testbed(self) -> bool:
        return self.model in zoo.NAMES

    def load(self, device: torch.device | None = None) -> Any:
        """The pipeline, without progress bars.

        Args:
            device: where it runs; None: a testbed on the CPU, others on the GPU where there is one.

        Raises:
            EvaluationError: there is no such pipeline, or it cannot be offloaded here.
            ConfigError: as `accelerate(quantize=)`.
        """
        if self.is_testbed:
            torch.set_num_threads(1)  # networks as small as these are slower with more
            device = device or torch.device("cpu")
        device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
        pipe = self._read(self._dtype(device))
        if self.quantize is not None:
            with quantising(each_uncompiled(denoisers_of(pipe)), self.quantize, False):
                pass
        self._place(pipe, device)
        pipe.set_progress_bar_config(disable=True)
        return pipe

    def call_for(self, pipe: Any, prompts: Sequence[Any], seeds: Iterable[int]) -> Call:
        """Keyword arguments that render a sample for each prompt, each from its own seed.

        Args:
            pipe: what `load` returned.
            prompts: texts; class numbers for pipelines of classes; anything for pipelines without prompts.
            seeds: one for each prompt.

        Raises:
            ConfigError: the pipeline does not take one of the arguments.
            EvaluationError: an argument is a text where the pipeline's own default is a number.
        """
        known = inspect.signature(pipe.__call__).parameters
        asked = self._asked(known, len(prompts))
        check_call(pipe, asked)
        for name, value in asked.items():
            if isinstance(value, str) and name in known and isinstance(known[name].default, int | float):
                raise EvaluationError(f"{name}={value}: give a number.")
        if self.is_testbed:
            steps = self.steps or zoo.STEPS.get(self.model, known["num_inference_steps"].default)
            return {**zoo.call_for(self.model, list(prompts), seeds, steps), **asked}
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        common = {"generator": generators, "output_type": "pt"}
        return {**_content(known, prompts), **common, **asked}

    def steps_of(self, pipe: Any) -> int:
        """The number of steps that `call_for` asks for."""
        call = self.call_for(pipe, zoo.prompts(self.model, 1) if self.is_testbed else [""], [0])
        default = inspect.signature(pipe.__call__).parameters["num_inference_steps"].default
        return int(call.get("num_inference_steps", default))

    def as_json(self) -> dict[str, Any]:
        """What samples depend on, for a manifest."""
        return {
            "model": self.model,
            "dtype": self.dtype,
            "quantize": None if self.quantize is None else str(self.quantize),
            "size": self.size,
            "frames": self.frames,
            "guidance": self.guidance,
            "call": {name: repr(value) for name, value in self.call.items()},
        }

    def _read(self, dtype: torch.dtype) -> Any:
        """The pipeline in host memory."""
        here = self.model == shipped.NAME or (zoo.FOLDER / self.model / "model_index.json").exists()
        if self.is_testbed and here:
            return zoo.load(self.model, dtype)
        if self.is_testbed and not Path(self.model).is_dir():
            raise EvaluationError(
                f"the weights of the testbed {self.model!r} come with the repository only: name a folder or a hub id, or {shipped.NAME}."
            )
        try:
            return DiffusionPipeline.from_pretrained(self.model, **{zoo.DTYPE: dtype})
        except (OSError, ValueError) as error:
            raise EvaluationError(
                f"no pipeline {self.model!r} ({str(error).splitlines()[0]}): name a testbed ({', '.join(zoo.NAMES)}), "
                "a folder or a hub id."
            ) from error

    def _dtype(self, device: torch.device) -> torch.dtype:
        if self.dtype == "auto":
            return torch.float32 if self.is_testbed or device.type == "cpu" else torch.bfloat16
        if self.dtype not in DTYPES:
            raise EvaluationError(f"dtype={self.dtype!r}: choose auto, {', '.join(DTYPES)}.")
        return DTYPES[self.dtype]

    def _place(self, pipe: Any, device: torch.device) -> None:
        """Moves the pipeline to its device, or lets its weights wait in host memory."""
        if self.offload not in OFFLOADS:
            raise EvaluationError(f"offload={self.offload!r}: choose one of {', '.join(OFFLOADS)}.")
        if self.offload == "none":
            pipe.to(device)
            return
        if device.type == "cpu":
            raise EvaluationError(
                f"--offload {self.offload} needs a GPU, and there is none here: leave it out, the weights are in host memory "
                "anyway."
            )
        if self.offload == "group":
            pipe.enable_group_offload(onload_device=device, offload_type="leaf_level")
        elif self.offload == "model":
            pipe.enable_model_cpu_offload(device=device)
        else:
            pipe.enable_sequential_cpu_offload(device=device)

    def _asked(self, known: Mapping[str, Any], samples: int) -> Call:
        """The arguments that were asked for by name."""
        asked: Call = {name: _value(name, value, samples) for name, value in self.call.items()}
        if self.steps is not None:
            asked["num_inference_steps"] = self.steps
        if self.size is not None:
            asked["width"], asked["height"] = self.size
        if self.frames is not None:
            asked[next((name for name in FRAMES if name in known), FRAMES[0])] = self.frames
        if self.guidance is not None:
            asked["guidance_scale"] = self.guidance
        return asked


def _content(known: Mapping[str, Any], prompts: Sequence[Any]) -> Call:
    """What is drawn, in the arguments that a pipeline has."""
    if "prompt" in known:
        return {"prompt": [str(prompt) for prompt in prompts]}
    if "class_labels" in known:
        return {"class_labels": [int(p) if str(p).isdecimal() else i for i, p in enumerate(prompts)]}
    return {"batch_size": len(prompts)} if "batch_size" in known else {}


def _value(name: str, value: Any, samples: int) -> Any:
    """An argument as the pipeline wants it: a text for each sample, a picture instead of its file's name."""
    if isinstance(value, str) and "image" in name and Path(value).suffix.lower() in PICTURE_FILES:
        from diffusers.utils import load_image

        try:
            return load_image(value)
        except (OSError, ValueError) as error:
            raise EvaluationError(f"{name}={value}: cannot be read as a picture ({error}).") from error
    return [value] * samples if isinstance(value, str) and name.endswith("prompt") else value
