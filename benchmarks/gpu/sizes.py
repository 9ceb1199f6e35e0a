"""How large the models, rows and products of gpu-check are: in earnest, and as toys for the CPU."""

from __future__ import annotations

from typing import NamedTuple

from benchmarks.gpu.models import Rows, Shape


class Size(NamedTuple):
    """How large everything is."""

    dtype: str  # of the middle and the large model
    matrix: int  # side of the product whose rate is measured
    copied: int  # bytes of the copy whose rate is measured
    tiny: Shape  # of which each family has one
    few: Rows
    middle: Shape
    ragged: Rows
    large: Shape
    long: Rows
    batches: tuple[int, int]  # rows of TRL's batches for the large model, without and with checkpointing
    tokens: tuple[int, int]  # of our micro-batches there
    lengths: tuple[int, ...]  # of the rows in the attention step; the last one decides
    single: tuple[int, ...]  # of the one row that the large model is trained on
    products: tuple[int, ...]  # tokens of the products whose rate is measured
    decoded: tuple[int, int, int]  # rows, tokens of a prompt, and tokens that are sampled one at a time
    plain: tuple[tuple[int, bool], ...]  # rows of the plain step's micro-batches, and whether layers are checkpointed
    profiled: int  # rows of the profiled update
    timed: int  # timed steps of each side with the middle model
    repeats: int  # of the same update


TINY = Shape("Qwen2", 64, 96, 2, 4, 2, 16, 2_400, True)
FULL = Size(
    dtype="bfloat16",
    matrix=8192,
    copied=2**32,
    tiny=TINY,
    few=Rows(4, 4, (20, 60), (30, 200)),
    middle=Shape("Qwen2", 896, 4864, 24, 14, 2, 64, 151_936, True),  # Qwen2.5-0.5B
    ragged=Rows(16, 8, (256, 512), (100, 1500)),
    large=Shape("Qwen2", 3584, 18_944, 28, 28, 4, 128, 152_064, False),  # Qwen2.5-7B
    long=Rows(4, 8, (512, 512), (1536, 1536)),
    batches=(2, 8),
    tokens=(4096, 16_384),
    lengths=(2048, 8192, 16_384),
    single=(8192, 16_384, 32_768),
    products=(1024, 4096, 16_384),
    decoded=(64, 64, 256),
    plain=((2, False), (4, False), (8, True)),
    profiled=16,
    timed=2,
    repeats=3,
)
TOY = Size(
    dtype="float32",  # on a CPU the layers give FlexAttention two types of numbers otherwise
    matrix=128,
    copied=2**20,
    tiny=TINY._replace(width=32, inner=48, layers=2, heads=2, groups=1),
    few=Rows(2, 2, (5, 9), (8, 30)),
    middle=TINY._replace(width=32, inner=48, layers=1, heads=2, groups=1),
    ragged=Rows(2, 2, (5, 9), (8, 30)),
    large=TINY._replace(width=32, inner=48, layers=1, heads=2, groups=1, tied=False),
    long=Rows(2, 2, (8, 8), (24, 24)),
    batches=(2, 4),
    tokens=(64, 128),
    lengths=(64,),
    single=(64,),
    products=(64,),
    decoded=(2, 8, 6),
    plain=((2, False), (4, True)),
    profiled=2,
    timed=1,
    repeats=2,
)
