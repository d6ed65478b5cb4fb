"""Rules for the arguments of a mixer that a user calls by hand."""

from __future__ import annotations

# "auto" is the fast form here: a run chooses before it builds its model.
KERNELS = ("auto", "fast", "reference", "cudnn", "splash")


def check_heads(d_model: int, n_heads: int, n_kv_heads: int, d_head: int | None) -> None:
    """Raises:
    ValueError: numbers of heads that do not fit together.
    """
    for name, value in (
        ("d_model", d_model),
        ("n_heads", n_heads),
        ("n_kv_heads", n_kv_heads),
        ("d_head", 1 if d_head is None else d_head),
    ):
        if value < 1:
            raise ValueError(f"{name}={value} must be at least 1")
    if n_heads % n_kv_heads:
        raise ValueError(f"n_kv_heads={n_kv_heads} must divide n_heads={n_heads}")
    if d_head is None and d_model % n_heads:
        raise ValueError(f"n_heads={n_heads} must divide d_model={d_model}, or give d_head")


def check_rope(d_head: int, rope: bool) -> int:
    """The width of a head.

    Raises:
      ValueError: it is odd, with rotary positions.
    """
    if rope and d_head % 2:
        raise ValueError(f"rope needs an even d_head, not {d_head}")
    return d_head


def check_share(share: str, known: tuple[str, ...], n_heads: int, n_kv_heads: int) -> None:
    """Raises:
    ValueError: an unknown way of sharing, or one by which wq makes keys that are fewer.
    """
    check_choice("share", share, known)
    if share in ("qk", "qkv") and n_kv_heads != n_heads:
        raise ValueError(f"share={share!r} needs n_kv_heads={n_kv_heads} = n_heads={n_heads}")


def check_stored(share: str, borrows: bool, quantised: bool, window: int) -> None:
    """Raises:
    ValueError: ways of storing keys and values that do not go together.
    """
    if borrows and share not in ("none", "kv"):
        raise ValueError(f"share={share!r} makes keys of wq, and a layer that borrows has other's")
    if quantised and share in ("kv", "qkv"):
        raise ValueError(f"share={share!r} stores one array, which cannot be quantised two ways")
    if quantised and window:
        raise ValueError(f"window={window} overwrites tokens that are quantised together")


def check_choice(name: str, value: str, known: tuple[str, ...]) -> None:
    """Raises:
    ValueError: a value that is not known.
    """
    if value not in known:
        raise ValueError(f"{name}={value!r} is not one of {', '.join(known)}")
