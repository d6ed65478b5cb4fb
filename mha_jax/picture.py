"""Attention weights as a small PNG, without matplotlib: a worker draws a few at the end of each
run.
"""

from __future__ import annotations

import io

import numpy as np

# The colour map viridis at 17 even places, from 0 to 1.
COLOURS = bytes.fromhex(
    "440154 48186a 472d7b 424086 3b528b 33638d 2c728e 26828e 21918c"
    "1f9f88 27ad81 3dbc74 5cc863 81d34d aadc32 d5e21a fde725"
)
_FRAME = (225, 225, 225)  # light grey: the border, and weights that are not a number
_SIDE = 256  # pixels: an image is scaled up by whole numbers to at most this, if it is smaller
_BORDER = 2  # pixels


def attention_png(weights_ts: np.ndarray) -> tuple[bytes, int, int]:
    """Attention weights in the colours of viridis, enlarged without smoothing, in a light frame.

    Args:
      weights_ts: float [t, s]; 0 is dark, 1 is bright, values outside are clipped, NaN has the
        colour of the frame.

    Returns:
      The PNG file, its width and its height in pixels.
    """
    from PIL import Image, ImageOps

    colours = np.frombuffer(COLOURS, np.uint8).reshape(17, 3)
    places = np.linspace(0, 16, 255)
    palette = [np.interp(places, np.arange(17), colours[:, c]).round() for c in range(3)]
    levels = np.rint(np.clip(np.nan_to_num(weights_ts), 0, 1) * 254).astype(np.uint8)
    image = Image.fromarray(np.where(np.isnan(weights_ts), 255, levels).astype(np.uint8))
    scale = max(1, _SIDE // max(weights_ts.shape))
    image = image.resize((image.width * scale, image.height * scale), Image.Resampling.NEAREST)
    image = ImageOps.expand(image, _BORDER, fill=255)
    image.putpalette([*np.stack(palette, 1).astype(np.uint8).ravel().tolist(), *_FRAME])
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue(), image.width, image.height
