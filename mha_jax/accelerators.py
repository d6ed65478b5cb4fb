"""What some accelerators have: memory, its speed, and products a second, by their makers."""

from __future__ import annotations

from typing import NamedTuple


class Accelerator(NamedTuple):
    """One chip. GB and TB are powers of ten, as the makers write them."""

    memory_bytes: int
    bytes_per_s: float  # of its memory
    flops_per_s: float  # dense products of bfloat16, summed in float32
    source: str


_A100 = "NVIDIA A100 datasheet (SXM)"
_HOPPER = "half of its figure with sparsity"
_TPU = "Cloud TPU documentation, system architecture"
ACCELERATORS = {
    "a100-40gb": Accelerator(40 * 10**9, 1.555e12, 312e12, _A100),
    "a100-80gb": Accelerator(80 * 10**9, 2.039e12, 312e12, _A100),
    "h100-80gb": Accelerator(
        80 * 10**9, 3.35e12, 989e12, f"NVIDIA H100 datasheet (SXM), {_HOPPER}"
    ),
    "h200": Accelerator(141 * 10**9, 4.8e12, 989e12, f"NVIDIA H200 datasheet (SXM), {_HOPPER}"),
    "rtx-4090": Accelerator(
        24 * 10**9, 1.008e12, 165.2e12, "NVIDIA Ada GPU architecture whitepaper"
    ),
    "tpu-v4": Accelerator(32 * 10**9, 1.2e12, 275e12, f"{_TPU}, v4"),
    "tpu-v5e": Accelerator(16 * 10**9, 8.19e11, 197e12, f"{_TPU}, v5e"),
    "tpu-v5p": Accelerator(95 * 10**9, 2.765e12, 459e12, f"{_TPU}, v5p"),
    "tpu-v6e": Accelerator(32 * 10**9, 1.64e12, 918e12, f"{_TPU}, v6e"),
}

# By the name that jax gives to a device of this kind.
BY_KIND = {
    "NVIDIA A100-SXM4-40GB": "a100-40gb",
    "NVIDIA A100-SXM4-80GB": "a100-80gb",
    "NVIDIA H100 80GB HBM3": "h100-80gb",
    "NVIDIA H200": "h200",
    "NVIDIA GeForce RTX 4090": "rtx-4090",
    "TPU v4": "tpu-v4",
    "TPU v5 lite": "tpu-v5e",
    "TPU v5": "tpu-v5p",
    "TPU v6 lite": "tpu-v6e",
}
