"""Procedural pictures and clips: textured shapes on textured backgrounds, with labels and captions.

Every pixel is a function of the scene's parameters, so a seed gives the same pictures on every device.
Letters in shapes: n scenes, k objects per scene (2), t frames, s picture side in pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

SHAPES = ("circle", "square", "triangle", "ring", "cross", "star")
COLOURS = ("red", "green", "blue", "yellow", "purple", "white")
TEXTURES = ("plain", "striped", "checked", "speckled")
SIZES = ("small", "large")
POSITIONS = ("top left", "top right", "bottom left", "bottom right", "centre")
BACKGROUNDS = ("dark", "grey", "brown", "grainy")
MOTIONS = ("left", "right", "up", "down")
NUM_CLASSES = len(SHAPES) * len(COLOURS)

_RGB = torch.tensor(
    [
        [0.92, 0.12, 0.12],
        [0.12, 0.78, 0.20],
        [0.16, 0.35, 0.98],
        [0.98, 0.86, 0.12],
        [0.72, 0.20, 0.88],
        [0.96, 0.96, 0.96],
    ]
)
_BACKGROUND_RGB = torch.tensor(
    [[0.05, 0.06, 0.12], [0.36, 0.37, 0.40], [0.33, 0.22, 0.12], [0.20, 0.21, 0.23]]
)
_CENTRES = torch.tensor([[-0.45, -0.45], [0.45, -0.45], [-0.45, 0.45], [0.45, 0.45], [0.0, 0.0]])
_RADII = torch.tensor([0.25, 0.44])
DIRECTIONS = torch.tensor([[-1.0, 0.0], [1.0, 0.0], [0.0, -1.0], [0.0, 1.0]])
_SECOND = 1  # index of the optional second object


@dataclass(frozen=True)
class Scenes:
    """Parameters of n scenes. Coordinates run from -1 (left, top) to 1 over the picture."""

    background: Tensor  # [n] index into BACKGROUNDS
    phase: Tensor  # [n] decides the background's grain and the direction of its gradient
    present: Tensor  # [n, k] bool
    shape: Tensor  # [n, k] index into SHAPES
    colour: Tensor  # [n, k] index into COLOURS
    texture: Tensor  # [n, k] index into TEXTURES
    size: Tensor  # [n, k] index into SIZES
    position: Tensor  # [n, k] index into POSITIONS
    centre: Tensor  # [n, k, 2]
    radius: Tensor  # [n, k]
    angle: Tensor  # [n, k] radians; turns shape and texture together
    motion: Tensor  # [n] index into MOTIONS, used by clips only

    @property
    def labels(self) -> Tensor:
        """Class of the first object, [n]: shape index * number of colours + colour index."""
        return self.shape[:, 0] * len(COLOURS) + self.colour[:, 0]

    def __getitem__(self, index: Tensor) -> Scenes:
        return Scenes(**{name: value[index] for name, value in vars(self).items()})


@dataclass(frozen=True)
class Batch:
    """`pixels` [n, 3, s, s] or, for clips, [n, 3, t, s, s] in [0, 1]; `labels` [n]; n captions."""

    pixels: Tensor
    labels: Tensor
    captions: list[str]


def class_name(label: int) -> str:
    """Name of a class, for example 'red ring'."""
    return f"{COLOURS[label % len(COLOURS)]} {SHAPES[label // len(COLOURS)]}"


def label_of(caption: str) -> int:
    """Class of the first object that a caption names."""
    words = caption.split()
    colour = next(word for word in words if word in COLOURS)
    shape = next(word for word in words if word in SHAPES)
    return SHAPES.index(shape) * len(COLOURS) + COLOURS.index(colour)


def sample_scenes(n: int, generator: torch.Generator, second: float = 0.25) -> Scenes:
    """Draws n random scenes; with probability `second` there is a small second object opposite a large first one."""

    def pick(count: int, *shape: int) -> Tensor:
        return torch.randint(count, shape, generator=generator)

    def jitter(scale: float, *shape: int) -> Tensor:
        return (torch.rand(shape, generator=generator) * 2 - 1) * scale

    pair = torch.rand(n, generator=generator) < second
    size, position = pick(len(SIZES), n, 2), pick(len(POSITIONS), n, 2)
    # Pairs: the first object is the large one, in a corner; the second is small, in the corner across.
    size[pair] = torch.tensor([1, 0])
    position[pair, 0] %= 4
    position[pair, 1] = 3 - position[pair, 0]
    return Scenes(
        background=pick(len(BACKGROUNDS), n),
        phase=torch.rand(n, generator=generator),
        present=torch.stack([torch.ones_like(pair), pair], 1),
        shape=pick(len(SHAPES), n, 2),
        colour=pick(len(COLOURS), n, 2),
        texture=pick(len(TEXTURES), n, 2),
        size=size,
        position=position,
        centre=_CENTRES[position] + jitter(0.06, n, 2, 2),
        radius=_RADII[size] * (1 + jitter(0.08, n, 2)),
        angle=jitter(0.2, n, 2),
        motion=pick(len(MOTIONS), n),
    )


def caption(scenes: Scenes, i: int, moving: bool = False) -> str:
    """Describes scene i, for example 'a large red striped ring top left on a dark background'."""

    def describe(j: int) -> str:
        texture = TEXTURES[int(scenes.texture[i, j])]
        words = [
            "a",
            SIZES[int(scenes.size[i, j])],
            COLOURS[int(scenes.colour[i, j])],
            *([] if texture == "plain" else [texture]),
            SHAPES[int(scenes.shape[i, j])],
        ]
        return " ".join(words)

    text = describe(0)
    text += (
        f" moving {MOTIONS[int(scenes.motion[i])]}" if moving else f" {POSITIONS[int(scenes.position[i, 0])]}"
    )
    if scenes.present[i, _SECOND]:
        text += f" and {describe(_SECOND)}"
    return f"{text} on a {BACKGROUNDS[int(scenes.background[i])]} background"


def pictures(n: int, seed: int, side: int = 64, second: float = 0.25) -> Batch:
    """Draws n labelled pictures of `side` x `side` pixels; the same seed gives the same pictures."""
    scenes = sample_scenes(n, torch.Generator().manual_seed(seed), second)
    texts = [caption(scenes, i) for i in range(n)]
    return Batch(render(scenes, side), scenes.labels, texts)


def clips(n: int, seed: int, side: int = 32, frames: int = 9, travel: float = 0.7) -> Batch:
    """Draws n labelled clips of one moving object. From the first to the last frame it covers `travel`; the picture is 2 wide.

    Objects are larger than in pictures, never speckled, and never on a grainy background: so few pixels could not
    show it.
    """
    scenes = moving_scenes(n, torch.Generator().manual_seed(seed))
    texts = [caption(scenes, i, moving=True) for i in range(n)]
    pixels = render(_frames(scenes, frames, travel), side)
    return Batch(pixels.view(n, frames, 3, side, side).transpose(1, 2).contiguous(), scenes.labels, texts)


def moving_scenes(n: int, generator: torch.Generator) -> Scenes:
    """Draws n random scenes of one object, for clips."""
    scenes = sample_scenes(n, generator, second=0.0)
    return replace(
        scenes,
        radius=scenes.radius * 1.5,
        texture=scenes.texture % TEXTURES.index("speckled"),
        background=scenes.background % BACKGROUNDS.index("grainy"),
    )


def render(scenes: Scenes, side: int) -> Tensor:
    """Renders scenes as pictures [n, 3, s, s] in [0, 1], with edges smoothed over one pixel."""
    axis = (torch.arange(side) + 0.5) / side * 2 - 1
    grid = torch.stack(torch.meshgrid(axis, axis, indexing="xy"))  # [2, s, s], x then y
    canvas = _background(scenes, grid)
    for j in reversed(range(scenes.present.shape[1])):
        rows = scenes.present[:, j].nonzero().squeeze(1)
        if len(rows):
            canvas[rows] = _paint(canvas[rows], scenes[rows], j, grid)
    return canvas.clamp(0, 1)


def _frames(scenes: Scenes, frames: int, travel: float) -> Scenes:
    """Repeats each scene for every frame, with its first object moved along its path: [n * t]."""
    n = len(scenes.phase)
    start = scenes.centre[:, 0] * 0.6
    direction = DIRECTIONS[scenes.motion]
    # Across the motion the path goes through the drawn centre; along it, its middle is the picture's.
    middle = start * (1 - direction.abs())
    offset = torch.linspace(-0.5, 0.5, frames)[None, :, None] * travel * direction[:, None]
    moved = scenes[torch.arange(n).repeat_interleave(frames)]
    centre = moved.centre.clone()
    centre[:, 0] = (middle[:, None] + offset).flatten(0, 1)
    return replace(moved, centre=centre)


def _hash(cells: Tensor, phase: Tensor) -> Tensor:
    """A pseudo-random value in [0, 1) for each integer cell [n, 2, s, s] and phase [n]."""
    # Small multipliers keep the sine's argument small, where float32 agrees between devices.
    mixed = torch.sin(cells[:, 0] * 12.9898 + cells[:, 1] * 78.233 + phase[:, None, None] * 37.719)
    return (mixed * 437.585).frac().abs()


def _background(scenes: Scenes, grid: Tensor) -> Tensor:
    turn = scenes.phase * 2 * math.pi
    slope = turn.cos()[:, None, None] * grid[0] + turn.sin()[:, None, None] * grid[1]
    canvas = _BACKGROUND_RGB[scenes.background][:, :, None, None] * (1 + 0.35 * slope[:, None])
    cells = (grid * 8).floor()[None]
    grain = (_hash(cells, scenes.phase) - 0.5) * 0.22
    return canvas + grain[:, None] * (scenes.background == BACKGROUNDS.index("grainy"))[:, None, None, None]


def _paint(canvas: Tensor, scenes: Scenes, j: int, grid: Tensor) -> Tensor:
    """Paints object j of each scene over the canvas [n, 3, s, s]."""
    local = grid[None] - scenes.centre[:, j, :, None, None]
    cos, sin = scenes.angle[:, j].cos()[:, None, None], scenes.angle[:, j].sin()[:, None, None]
    local = torch.stack([cos * local[:, 0] + sin * local[:, 1], cos * local[:, 1] - sin * local[:, 0]], 1)
    unit = local / scenes.radius[:, j, None, None, None]
    distance = torch.empty_like(unit[:, 0])
    for index, outline in enumerate(_OUTLINES):
        rows = scenes.shape[:, j] == index
        distance[rows] = outline(unit[rows])
    pixel = 2 / grid.shape[-1]
    mask = (0.5 - distance * scenes.radius[:, j, None, None] / pixel).clamp(0, 1)[:, None]
    shade = _texture(local, scenes.texture[:, j], scenes.phase)
    colour = _RGB[scenes.colour[:, j]][:, :, None, None] * shade[:, None]
    return canvas * (1 - mask) + colour * mask


def _texture(local: Tensor, kind: Tensor, phase: Tensor) -> Tensor:
    """Brightness of the object's paint, [n, s, s], in the object's own coordinates [n, 2, s, s]."""
    stripes = torch.sin((local[:, 0] + local[:, 1]) * 18.0)
    checks = torch.sin(local[:, 0] * 17.0) * torch.sin(local[:, 1] * 17.0) * 1.6
    speckles = (_hash((local * 9).floor(), phase) - 0.6) * 6
    stack = torch.stack([torch.ones_like(stripes), stripes * 3, checks * 3, speckles], 1)
    chosen = stack[torch.arange(len(kind)), kind].clamp(-1, 1)
    return 0.72 + 0.28 * chosen


def _length(unit: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(unit, dim=1)
    return length


def _polygon(points: int, inner: float, scale: float) -> Callable[[Tensor], Tensor]:
    """The signed distance function of a star with outer radius `scale`; its inner corners lie at `inner` of that."""
    half = math.pi / points
    tip = (scale, 0.0)
    notch = (scale * inner * math.cos(half), scale * inner * math.sin(half))
    edge = (notch[0] - tip[0], notch[1] - tip[1])
    length = math.hypot(*edge)

    def distance(unit: Tensor) -> Tensor:
        turn = torch.atan2(unit[:, 0], -unit[:, 1])  # 0 points up
        folded = (torch.remainder(turn + half, 2 * half) - half).abs()
        rho = _length(unit)
        x, y = rho * folded.cos() - tip[0], rho * folded.sin() - tip[1]
        signed: Tensor = (edge[1] * x - edge[0] * y) / length
        return signed

    return distance


def _circle(unit: Tensor) -> Tensor:
    return _length(unit) - 0.92


def _square(unit: Tensor) -> Tensor:
    return unit.abs().amax(1) - 0.8


def _ring(unit: Tensor) -> Tensor:
    return (_length(unit) - 0.74).abs() - 0.25


def _cross(unit: Tensor) -> Tensor:
    return torch.maximum(unit.abs().amin(1) - 0.32, unit.abs().amax(1) - 1.0)


_OUTLINES: tuple[Callable[[Tensor], Tensor], ...] = (
    _circle,
    _square,
    _polygon(3, 0.5, 1.2),
    _ring,
    _cross,
    _polygon(5, 0.42, 1.2),
)
