"""The functions of one lane that a run dispatches, and the shapes of what they are given.

A group runs them over its lanes (`group.py`); `aot.py` compiles the same ones for devices that are
not there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from mha_jax import evaluate, examine, rng, train
from mha_jax.tasks import SPLITS, Documents


class LaneFunction(NamedTuple):
    """A function of one lane."""

    function: Callable[..., Any]
    mapped: int  # so many of its first arguments every lane has for itself
    donated: bool = False  # its first argument is used up


def of(program: train.Program, documents: Documents | None) -> dict[str, LaneFunction]:
    """All of them, by name.

    Args:
      program: of the runs.
      documents: of their task.
    """

    def over(function: Callable[..., Any], **fixed: Any) -> Callable[..., Any]:
        return functools.partial(function, program, **fixed)

    found = {
        "init": LaneFunction(over(train.init), 1),
        "train": LaneFunction(over(train.train_chunk), 2, donated=True),
        "evaluate": LaneFunction(over(evaluate.evaluate), 1),
        "look": LaneFunction(over(examine.look), 1),
        "compare": LaneFunction(over(examine.compare), 1),
    }
    if documents is not None:
        losses = over(evaluate.document_losses, n_documents=len(documents.names))
        found["documents"] = LaneFunction(losses, 1)
    if examine.repeated_forms(program.spec):
        found["repeated"] = LaneFunction(over(examine.repeated), 1)
    return found


def arguments(
    program: train.Program, documents: Documents | None
) -> list[tuple[str, str, tuple[Any, ...]]]:
    """What each of them is given: its name, what tells this call from another one of it, and the
    shapes and dtypes of its arguments for one lane.

    Raises:
      ValueError: the corpus cannot be read.
    """
    constants = {split: _shapes(program.static.task.constants(split)) for split in SPLITS}
    drawn: Any = (
        _scalar(jnp.uint32),
        _scalar(jnp.uint32),
        _scalar(jnp.float32),
        _scalar(jnp.float32),
    )
    hypers = train.HyperArrays(*drawn)
    state = jax.eval_shape(functools.partial(train.init, program), hypers)
    params, n = state.params, _scalar(jnp.int32)
    draw = jax.eval_shape(lambda: rng.stream(0, "test"))
    found: list[tuple[str, str, tuple[Any, ...]]] = [
        ("init", "", (hypers,)),
        ("train", "", (state, hypers, constants["train"], n)),
        ("evaluate", "validation", (params, constants["validation"], draw, n)),
        ("evaluate", "test", (params, constants["test"], draw, n)),
        ("look", "", (params, constants["test"], n)),
        ("compare", "", (params, constants["test"], n)),
        ("repeated", "", (params,)),
    ]
    if documents is not None:
        index, *windows = _shapes(tuple(documents[1:]))
        found.append(("documents", "", (params, named_windows(windows), index)))
    names = of(program, documents)
    return [one for one in found if one[0] in names]


def named_windows(windows: Any) -> dict[str, Any]:
    """The arrays of a `tasks.Documents` as `evaluate.document_losses` takes them."""
    return dict(zip(("inputs", "targets", "loss_mask"), windows, strict=True))


def _shapes(tree: Any) -> Any:
    return jax.eval_shape(lambda x: x, tree)


def _scalar(dtype: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((), dtype)
