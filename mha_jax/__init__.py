"""mha_jax: how many heads, how many kv heads, and what do the heads do?

The public names load on first use (PEP 562), so `import mha_jax` costs nothing, imports no jax and
sets no global flag.

    Attention         MHA, GQA, MQA as a Flax NNX module, for a model of your own
    LatentAttention   MLA and GLA
    TiedAttention     GTA
    load_run          a finished run: its config, its parameters, its attention
    load_sweep        a finished sweep: its runs, cells, heads and curves as tables
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mha_jax.attention.grouped import Attention
    from mha_jax.attention.gta import TiedAttention
    from mha_jax.attention.mla import LatentAttention
    from mha_jax.report.data import load_sweep
    from mha_jax.run import load_run

__version__ = "0.1.0"
__all__ = [
    "Attention",
    "LatentAttention",
    "TiedAttention",
    "__version__",
    "load_run",
    "load_sweep",
]

_HOME = {
    "Attention": "mha_jax.attention.grouped",
    "LatentAttention": "mha_jax.attention.mla",
    "TiedAttention": "mha_jax.attention.gta",
    "load_run": "mha_jax.run",
    "load_sweep": "mha_jax.report.data",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'mha_jax' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
