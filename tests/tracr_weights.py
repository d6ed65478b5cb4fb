"""A compiled RASP program as one of our models.

Tracr (Lindner et al. 2023, "Tracr: Compiled Transformers as a Laboratory for Interpretability")
turns each `Select` of a program into a head. Its transformer is ours with the switches below: all
of it can be loaded, MLPs, biases and empty layers included.
"""

from typing import Any

import jax
import numpy as np
from shapes import model_of, spec_of
from tracr.compiler import compiling
from tracr.rasp import rasp

from mha_jax.config import ModelSpec
from mha_jax.tasks import TaskSpec

VOCAB = ("a", "b", "c")
BOS = "bos"


def shifts(n: int, length: int = 6) -> Any:
    """The compiled program that returns (x[t-1], ..., x[t-n]) at every t: n Selects, n heads."""

    def shift(j: int) -> rasp.Aggregate:
        select = rasp.Select(rasp.indices, rasp.indices, lambda key, query: key == query - j)
        return rasp.Aggregate(select, rasp.tokens, default=None).named(f"shift_{j}")

    program, *rest = [shift(j) for j in range(1, n + 1)]
    for other in rest:
        program = rasp.SequenceMap(lambda x, y: (*x, y), program, other)
    with jax.numpy_rank_promotion("allow"):
        return compiling.compile_rasp_to_model(
            program, vocab=set(VOCAB), max_seq_len=length, compiler_bos=BOS
        )


def slots(compiled: Any) -> dict[int, np.ndarray]:
    """Columns of the stream that hold x[t-j], one for each word of VOCAB, by j."""
    found: dict[int, list[int]] = {}
    for column, label in enumerate(compiled.residual_labels):
        if label.startswith("shift_"):
            found.setdefault(int(label.split("_")[1]), []).append(column)
    return {j: np.array(columns) for j, columns in found.items()}


def specs(compiled: Any) -> tuple[ModelSpec, TaskSpec]:
    """Shapes and switches; the one read-out is the whole stream."""
    config = compiled.model_config
    assert config.activation_function is jax.nn.relu and not (config.layer_norm or config.causal)
    (length, d_model), (vocab, _) = (
        compiled.params[name]["embeddings"].shape for name in ("pos_embed", "token_embed")
    )
    model = model_of(
        config.num_layers,
        d_model=d_model,
        n_heads=config.num_heads,
        n_kv_heads=config.num_heads,
        d_head=config.key_size,
        d_ff=config.mlp_hidden_size,
        residual=True,
        bias=True,
        activation="relu",
    )
    spec = spec_of(
        input_sizes=(vocab,),
        length=length,
        mask="full",
        outputs=("stream",),
        output_size=d_model,
    )
    return model, spec


def params(compiled: Any) -> dict[str, Any]:
    """The tree of `mha_jax.model.build(*specs(compiled))`."""
    theirs = compiled.params
    d_model = len(compiled.residual_labels)

    def layer(i: int) -> dict[str, Any]:
        at = f"transformer/layer_{i}"
        names = {"q": "query", "k": "key", "v": "value", "o": "linear"}
        attention = {letter: theirs[f"{at}/attn/{name}"] for letter, name in names.items()}
        return {
            "mixer": {f"w{letter}": linear["w"] for letter, linear in attention.items()}
            | {f"b{letter}": linear["b"] for letter, linear in attention.items()},
            "mlp": {"wi": theirs[f"{at}/mlp/linear_1"], "wo": theirs[f"{at}/mlp/linear_2"]},
        }

    return {
        "encoder": {"embed": {"0": theirs["token_embed"]["embeddings"]}},
        "positions": theirs["pos_embed"]["embeddings"],
        "layers": {str(i): layer(i) for i in range(compiled.model_config.num_layers)},
        "readout": {"out": {"w": np.eye(d_model, dtype=np.float32), "b": np.zeros(d_model)}},
    }
