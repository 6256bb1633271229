"""Options of `serve`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path

from seamseg.inference.options import LoadOptions
from seamseg.utils.errors import InputError
from seamseg.utils.options import option, several

_server, _limit = partial(option, group="server"), partial(option, group="limits")


@dataclass(frozen=True)
class ServeOptions(LoadOptions):
    """Options of :func:`seamseg.serve`: those of the model, batches, limits and pages."""

    _: KW_ONLY
    batch_size: int | None = _server(
        "maximum number of images of equal network size computed together (default: 4 on a GPU, 1 elsewhere); each "
        "core of a CPU computes small images of its own, unless this is set to 1",
        None,
        "N",
    )
    cors: str | Sequence[str] | None = _server(
        "pages of other sites that may send images, such as https://a.example,https://b.example:8080, or * (default: "
        "none)",
        None,
        "ORIGINS",
    )
    queue: int = _limit("maximum number of requests in progress, others get 503 (default: 32)", 32, "N")
    max_upload: float = _limit("maximum size of an uploaded image in MiB (default: 32)", 32.0, "MIB")
    max_megapixels: float = _limit("maximum size of an image in megapixels (default: 50)", 50.0, "N")
    timeout: float = _limit("maximum duration of a request in seconds, then 504 (default: 60)", 60.0, "S")
    host: str = _server("address to listen on (default: 127.0.0.1)", "127.0.0.1", "H")
    port: int = _server("0 for any free one (default: 8000)", 8000, "N")

    def __post_init__(self, components: str | Path | Sequence[str | Path]) -> None:
        super().__post_init__(components)
        for name in ("batch_size", "queue", "max_upload", "max_megapixels", "timeout"):
            value = getattr(self, name)
            # false for NaN
            if value is not None and not 0 < value < float("inf"):
                raise InputError(f"`{name}={value}`: must be positive and finite")
        for origin in self.origins:
            if not re.fullmatch(r"\*|https?://[^/\sA-Z]+", origin):
                raise InputError(f"`cors={origin}`: an origin is https://name or https://name:port, in lower case")
        from seamseg.maps.images import MAX_PIXELS

        if self.max_megapixels * 1e6 > MAX_PIXELS:
            given = f"`max_megapixels={self.max_megapixels}`"
            raise InputError(f"{given}: images above {MAX_PIXELS / 1e6:.0f} megapixels are never decoded")
        if self.probabilities:
            raise InputError("`probabilities` has no effect: no response contains them")

    @property
    def origins(self) -> tuple[str, ...]:
        """The origins of `cors`; empty if there are none."""
        return tuple(origin.strip() for one in several(self.cors or ()) for origin in str(one).split(","))
