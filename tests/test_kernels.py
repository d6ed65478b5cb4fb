"""Fused attention kernels against the reference, and the choice among them. Without GPU or TPU:
splash attention is interpreted, and cuDNN's call is made by XLA or only lowered."""

from __future__ import annotations

import dataclasses
import functools
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from synthetic import static

from mha_jax import kernel_choice, kernel_rules
from mha_jax.attention import kernels
from mha_jax.attention.core import Mask, reference
from mha_jax.attention.grouped import Attention

MASKS = {
    "causal": Mask(),
    "full": Mask("full"),
    "context_query": Mask("context_query", 40),
    "window": Mask("causal", 0, 50),
}
SINKS = {"sinks": Mask("causal", 0, 50, 3)}
HEADS = [(4, 1), (2, 2), (1, 4)]  # k, g: MHA, GQA, MQA
# A few products whose factors bfloat16 rounds to 2^-9, relative to the largest entry.
TOLERANCE = {"float32": 1e-5, "bfloat16": 0.03}


def inputs(k: int, g: int, t: int, dtype: str, h: int = 8) -> tuple[jax.Array, ...]:
    """q, k, v of two sequences, and a weight for each output."""
    shapes = [(2, t, k, g, h), (2, t, k, h), (2, t, k, h), (2, t, k, g, h)]
    keys = jax.random.split(jax.random.key(t + 10 * k + g), 4)
    drawn = [jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True)]
    return *(x.astype(dtype) for x in drawn[:3]), drawn[3]


def outcome(attend: Any, args: tuple[jax.Array, ...], mask: Mask, sink: Any = None) -> Any:
    """z_btkgh under a form, and the gradients of q, k, v and the sink's logits."""
    q, k, v, weight = args

    @jax.jit
    def program(q: Any, k: Any, v: Any, sink: Any) -> Any:
        def total(q: Any, k: Any, v: Any, sink: Any) -> Any:
            z = attend(q, k, v, mask, 0.3, sink).astype(jnp.float32)
            return (weight * z).sum(), z

        which = (0, 1, 2) if sink is None else (0, 1, 2, 3)
        grads, z = jax.grad(total, which, has_aux=True)(q, k, v, sink)
        return z, *grads

    return jax.device_get(program(q, k, v, sink))


def by_letters(q: Any, k: Any, v: Any, mask: Mask, scale: float, sink: Any) -> Any:
    return reference(q, k, v, mask, scale, sink_kg=sink).z_btkgh


def assert_alike(one: Any, other: Any, dtype: str) -> None:
    for a, b in zip(one, other, strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        assert a.shape == b.shape
        assert np.abs(a - b).max() <= TOLERANCE[dtype] * np.abs(b).max()


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("k, g", HEADS)
@pytest.mark.parametrize("name", MASKS)
def test_what_cudnn_is_asked_for_is_the_reference(name: str, k: int, g: int, dtype: str) -> None:
    args = inputs(k, g, 64, dtype)
    asked = functools.partial(kernels.cudnn, implementation="xla")
    desired = outcome(by_letters, args, MASKS[name])
    assert_alike(outcome(asked, args, MASKS[name]), desired, dtype)


@pytest.mark.parametrize("name", MASKS)
def test_cudnn_lowers_to_its_call(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where = "jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version"
    monkeypatch.setattr(where, lambda: 91000)  # there is no cuDNN to ask
    q, k, v, _ = inputs(2, 2, 64, "bfloat16")

    def total(q: Any, k: Any, v: Any) -> Any:
        return kernels.cudnn(q, k, v, MASKS[name], 0.3).astype(jnp.float32).sum()

    traced = jax.jit(jax.grad(total, (0, 1, 2))).trace(q, k, v)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert "__cudnn$fmhaSoftmax(" in text and "__cudnn$fmhaSoftmaxBackward(" in text
    if name == "window":
        assert r"sliding_window_length\22: 50" in text
    assert ("CAUSAL" in text) == (MASKS[name].kind == "causal")


@pytest.mark.parametrize("k, g", HEADS)
@pytest.mark.parametrize("name", [*MASKS, *SINKS])
def test_splash_is_the_reference(name: str, k: int, g: int) -> None:
    mask = {**MASKS, **SINKS}[name]
    # Three blocks, so that some are skipped and some are seen whole, where the mask has such.
    t = 384 if (k, g) == (2, 2) else 128
    args, asked = inputs(k, g, t, "float32"), functools.partial(kernels.splash, interpret=True)
    assert_alike(outcome(asked, args, mask), outcome(by_letters, args, mask), "float32")


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_splash_has_learned_sinks_and_both_dtypes(dtype: str) -> None:
    args, sink = inputs(2, 2, 128, dtype), jnp.array([[0.5, -1.0], [2.0, 0.0]])
    asked = functools.partial(kernels.splash, interpret=True)
    desired = outcome(by_letters, args, Mask(), sink)
    assert_alike(outcome(asked, args, Mask(), sink), desired, dtype)


def test_splash_under_lanes() -> None:
    one, two = (inputs(1, 2, 128, "float32", h) for h in (8, 8))
    asked = functools.partial(kernels.splash, interpret=True)
    lanes = [jnp.stack([a, 2 * b]) for a, b in zip(one[:3], two[:3], strict=True)]
    many = jax.vmap(lambda q, k, v: asked(q, k, v, Mask(), 0.3))(*lanes)
    for r in range(2):
        desired = by_letters(*(x[r] for x in lanes), Mask(), 0.3, None)
        np.testing.assert_allclose(many[r], desired, atol=1e-5)  # float32 sums in blocks


def test_a_layer_attends_by_its_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    for name in ("cudnn", "splash"):
        fake = functools.partial(
            lambda name, *args: called.append(name) or kernels.fast(*args), name
        )
        monkeypatch.setattr(kernels, name, fake)
    x_btd = jax.random.normal(jax.random.key(0), (1, 6, 8))
    for name in ("auto", "fast", "reference", "cudnn", "splash"):
        layer = Attention(8, 2, kernel=name, rngs=nnx.Rngs(0))
        layer(x_btd)
        layer(x_btd, return_weights=True)  # by the reference
    assert called == ["cudnn", "splash"]


def test_what_a_kernel_has_no_form_for_is_refused() -> None:
    q, k, v, _ = inputs(2, 2, 64, "float32")
    with pytest.raises(ValueError, match="blocks of 128 positions, and there are 64"):
        kernels.splash(q, k, v, Mask(), 1.0)
    with pytest.raises(ValueError, match="cudnn has no sinks"):
        kernels.cudnn(q, k, v, SINKS["sinks"], 1.0)
    with pytest.raises(ValueError, match="cudnn has no sinks"):
        kernels.cudnn(q, k, v, Mask(), 1.0, jnp.zeros((2, 2)))


def spec_with(kernel: str = "auto", length: int = 128, d_head: int = 64, **model: Any) -> Any:
    return static("text", 2, d_head=d_head, length=length, model={"kernel": kernel, **model})


@pytest.mark.parametrize(
    "kernel, changes, says",
    [
        ("splash", {}, None),
        ("splash", {"sink_logit": True, "window": 8, "n_sinks": 2}, None),
        ("splash", {"length": 96}, "blocks of 128 positions, and the task has 96"),
        ("splash", {"mixer": "mla", "d_latent": 8}, "of which there are none"),
        ("splash", {"kv_quant": "int8"}, "no form for model.kv_quant='int8'"),
        ("cudnn", {}, "needs 16-bit inputs"),
        ("cudnn", {"compute_dtype": "bfloat16", "length": 96}, None),
        (
            "cudnn",
            {"compute_dtype": "bfloat16", "sink_logit": True},
            "no form for model.sink_logit",
        ),
        (
            "cudnn",
            {"compute_dtype": "bfloat16", "window": 8, "n_sinks": 2},
            "no form for model.n_sinks=2",
        ),
        ("cudnn", {"compute_dtype": "bfloat16", "d_head": 12}, "multiple of 8 up to 128, not 12"),
        ("cudnn", {"compute_dtype": "bfloat16", "d_head": 136}, "multiple of 8 up to 128, not 136"),
    ],
)
def test_rules(kernel: str, changes: dict[str, Any], says: str | None) -> None:
    spec = spec_with(**changes)
    switches = dataclasses.asdict(spec.model)
    lacking = kernel_rules.lacks(kernel, spec.model.layers, switches, spec.task.spec)
    assert (lacking is None) if says is None else (says in lacking[0])
    got = {f"model.{key}": value for key, value in switches.items()} | {"model.kernel": kernel}
    named = list(kernel_rules.named(spec.model.layers, got, spec.task.spec))
    assert len(named) == (says is not None) and not any("traceback" in str(p) for p in named)
    assert not list(
        kernel_rules.named(spec.model.layers, got | {"model.kernel": "auto"}, spec.task.spec)
    )


def device(platform: str) -> Any:
    return SimpleNamespace(platform=platform, device_kind=f"a {platform}")


def test_a_cpu_has_the_fast_form_and_no_other() -> None:
    choice = kernel_choice.choose(spec_with(), jax.devices("cpu")[0])
    assert choice == ("auto", "fast", "there is no fused kernel for a cpu", False)
    for name in ("fast", "reference"):
        assert kernel_choice.choose(spec_with(name), device("tpu")).used == name
    for name in ("cudnn", "splash"):
        with pytest.raises(ValueError, match=f"model.kernel='{name}' does not run on a cpu"):
            kernel_choice.choose(spec_with(name), device("cpu"))
    with pytest.raises(ValueError, match="'cudnn' does not run on a tpu"):
        kernel_choice.choose(spec_with("cudnn"), device("tpu"))


def test_auto_takes_what_the_device_has_or_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(kernel_choice, "probe", lambda name, *_: asked.append(name))
    half = {"compute_dtype": "bfloat16"}
    choose = kernel_choice.choose
    assert choose(spec_with(**half), device("gpu"))[:2] == ("auto", "cudnn")
    assert choose(spec_with(), device("tpu"))[:2] == ("auto", "splash")
    assert choose(spec_with("splash", d_head=8), device("tpu")).used == "splash"
    assert asked == ["cudnn", "splash", "splash"]
    for spec, platform, why in (
        (spec_with(), "gpu", "cudnn needs 16-bit inputs"),
        (spec_with(length=96), "tpu", "splash goes in blocks of 128 positions"),
        (spec_with(d_head=32), "tpu", "splash moves more bytes than XLA with heads of 32"),
    ):
        choice = choose(spec, device(platform))
        assert choice.used == "fast" and choice.fallback and why in choice.why
    assert len(asked) == 3


def test_a_kernel_that_does_not_work_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = jax.devices("cpu")[0]
    spec = spec_with(n_kv_heads=1)
    interpreted = functools.partial(kernels.splash, interpret=True)
    monkeypatch.setattr(kernels, "splash", interpreted)
    assert kernel_choice.probe("splash", spec, cpu) is None

    def wrong(q: Any, k: Any, v: Any, mask: Mask, *rest: Any) -> Any:
        return kernels.fast(q, k, v, mask._replace(kind="full"), *rest)

    monkeypatch.setattr(kernels, "splash", wrong)
    assert kernel_choice.probe("splash", spec, cpu) == "gives other numbers than the fast form"

    def broken(*_: Any) -> Any:
        raise RuntimeError("no libcudnn\nand more")

    monkeypatch.setattr(kernels, "splash", broken)
    found = kernel_choice.probe("splash", spec, cpu)
    assert found == "fails: RuntimeError: no libcudnn"
    tpu = SimpleNamespace(platform="tpu", device_kind="v5")
    monkeypatch.setattr(kernel_choice, "probe", lambda *_: found)
    choice = kernel_choice.choose(spec, tpu)
    assert choice.used == "fast" and choice.fallback and choice.why == f"splash {found}"
    with pytest.raises(ValueError, match="no libcudnn .v5.; choose 'auto'"):
        kernel_choice.choose(dataclasses.replace(spec, model=spec_with("splash").model), tpu)
