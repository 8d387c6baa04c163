"""app: a page in the browser with a prompt, a slider for the speed-up, and the full run beside the cached one."""

import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import click
from torch import Tensor

from diffcache.api import method_named
from diffcache.command.options import SEEDS, Setting, with_setting
from diffcache.evals.harness.rendering import Rendered, render
from diffcache.evals.harness.side_by_side import GAIN, as_image, stills
from diffcache.profiling.recording.pictures import psnr
from diffcache.schedulers.errors import ConfigError, DiffcacheError

SIDE = 256
"""Pixels that a small picture is enlarged to."""
REMEMBERED = 32
"""The most full runs that are remembered."""


@dataclass
class Studio:
    """A pipeline that renders each of the last prompts and seeds in full once, and cached as often as it is asked to.

    Args:
        setting: the pipeline and how it is called.
    """

    setting: Setting
    pipe: Any = None
    fulls: dict[tuple[str, int], Rendered] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.pipe = self.setting.source.load()
        self.steps = self.setting.source.steps_of(self.pipe)
        first = self.setting.asked(1, "heldout")[0]
        render(self.pipe, {**self._call(first, 0), "num_inference_steps": min(self.steps, 2)})  # warms up

    def full(self, prompt: str, seed: int) -> Rendered:
        """The full run, rendered or remembered."""
        if (prompt, seed) not in self.fulls:
            self.fulls[prompt, seed] = render(self.pipe, self._call(prompt, seed))
            for oldest in list(self.fulls)[:-REMEMBERED]:
                del self.fulls[oldest]
        return self.fulls[prompt, seed]

    def cached(self, prompt: str, seed: int, speedup: float) -> Rendered:
        """The run at a speed-up."""
        return render(self.pipe, self._call(prompt, seed), method_named(speedup=speedup))

    def _call(self, prompt: str, seed: int) -> dict[str, Any]:
        return {
            **self.setting.source.call_for(self.pipe, [prompt], [seed]),
            "num_inference_steps": self.steps,
        }


def drawn(studio: Studio, prompt: str, speedup: float, seed: float | None) -> Iterator[tuple[Any, ...]]:
    """What the page shows: the full picture, the cached one, their difference, the timeline and a sentence; as they come.

    Args:
        studio: who draws.
        prompt: what is drawn.
        speedup: of the cached run.
        seed: None, an emptied field: that of the setting.
    """
    seed = studio.setting.seed if seed is None else seed
    full = studio.full(prompt, int(seed))
    yield _image(full.pictures), None, None, "", "The full run is done. The cached run is being drawn."
    made = studio.cached(prompt, int(seed), speedup)
    report = made.run_report
    difference = (GAIN * (made.pictures - full.pictures).abs()).clamp(0, 1)
    near = float(psnr(made.pictures, full.pictures)[0])
    told = (
        f"**{report.speedup:.2f}x less work.** Here {full.seconds:.2f} s in full, {made.seconds:.2f} s cached. "
        f"PSNR {near:.1f} dB to the full run."
    )
    timeline = f'<div style="overflow-x: auto">{report.timeline()}</div>'
    notes = "".join(f"\n\nNote: {note}" for note in report.notes)
    yield _image(full.pictures), _image(made.pictures), _image(difference), timeline, told + notes


def page(studio: Studio) -> Any:
    """The page as Gradio's blocks; it asks no other machine for anything."""
    import gradio as gr

    prompts = [str(prompt) for prompt in studio.setting.asked(8, "heldout")]
    with gr.Blocks(title="diffcache", analytics_enabled=False) as blocks:
        gr.Markdown(
            f"# diffcache\nThe model {studio.setting.source.model} draws your prompt twice: all {studio.steps} steps computed, "
            "and some of them predicted. Move the slider to compute fewer steps, and see what that costs."
        )
        with gr.Row():
            prompt = gr.Textbox(prompts[0], label="Prompt", scale=3)
            seed = gr.Number(
                studio.setting.seed, label="Seed", precision=0, scale=1, minimum=SEEDS[0], maximum=SEEDS[1]
            )
        speedup = gr.Slider(1.0, 4.0, 2.0, step=0.25, label="Speed-up: at 2, half of the steps are computed")
        button = gr.Button("Draw", variant="primary")
        told = gr.Markdown("Press Draw.")
        with gr.Row():
            full, cached, difference = (
                gr.Image(label=label, height=SIDE + 20, interactive=False)
                for label in ("full run", "cached", f"difference x{GAIN}")
            )
        timeline = gr.HTML()
        gr.Examples([[one] for one in prompts], inputs=[prompt])
        asked, shown = [prompt, speedup, seed], [full, cached, difference, timeline, told]

        def show(*values: Any) -> Iterator[tuple[Any, ...]]:
            try:
                yield from drawn(studio, *values)
            except DiffcacheError as error:
                raise gr.Error(str(error), print_exception=False) from error

        button.click(show, asked, shown, api_name="draw")
        speedup.release(show, asked, shown, api_name=False)
        prompt.submit(show, asked, shown, api_name=False)
    return blocks


def theme() -> Any:
    """Gradio's own, with fonts that are there already."""
    import gradio as gr

    return gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"])


def _image(pictures: Tensor) -> Any:
    """The first picture, enlarged if it is small."""
    image = as_image(stills(pictures)[0])
    scale = max(1, SIDE // image.width)
    return image.resize((image.width * scale, image.height * scale), 0)


def _check_free(port: int) -> None:
    """Raises where nobody can listen at a port of this machine."""
    with socket.socket() as here:
        here.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            here.bind(("127.0.0.1", port))
        except OSError as error:
            raise ConfigError(
                f"--port {port} cannot be used ({error.strerror}): choose another one."
            ) from error


@click.command()
@click.option("--port", type=click.IntRange(1, 65535), default=7860, show_default=True)
@click.option("--no-browser", is_flag=True, help="Do not open the page.")
@with_setting
def command(setting: Setting, port: int, no_browser: bool) -> None:
    """Open a page with a prompt, a slider for the speed-up, and the full run beside the cached one.

    Without --model a small model that comes with the package draws emoji.
    """
    shown = theme()  # first, since it needs the extra
    _check_free(port)
    page(Studio(setting)).launch(server_port=port, inbrowser=not no_browser, theme=shown)
