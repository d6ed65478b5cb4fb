"""A page in a notebook, or in a file."""

from __future__ import annotations

import dataclasses
import html as markup
from pathlib import Path

from mha_jax.files import write_atomic
from mha_jax.page.html import MARK

_HEIGHT = 900  # pixels of the frame in a notebook


@dataclasses.dataclass(frozen=True)
class Shown:
    """The attention page. A notebook shows it in a frame that can reach nothing outside."""

    html: str = dataclasses.field(repr=False)

    def _repr_html_(self) -> str:
        return (
            f'<iframe sandbox="allow-scripts" srcdoc="{markup.escape(self.html)}" '
            f'title="attention page" width="100%" height="{_HEIGHT}"></iframe>'
        )

    def save(self, path: str | Path, *, force: bool = False) -> Path:
        """Writes the page, and returns where.

        Raises:
          ValueError: a file is there that is no attention page, and `force` is not set.
          OSError: it cannot be written.
        """
        path = Path(path)
        check_free(path, force=force)
        write_atomic(path, self.html)
        return path


def check_free(path: Path, *, force: bool) -> None:
    """Nothing, where a page may be written.

    Raises:
      ValueError: no directory, or a file is there that is no attention page, and `force` is not
        set.
    """
    if path.is_dir():
        raise ValueError(f"{path} is a directory; name a file in it, such as {path / 'page.html'}")
    if not path.parent.is_dir():
        raise ValueError(f"{path.parent}: no such directory; make it, or name another file")
    if force or not path.exists():
        return
    with path.open("rb") as file:
        if MARK.encode() not in file.read(1000):
            raise ValueError(f"{path} is there and is no attention page; name another, or --force")
