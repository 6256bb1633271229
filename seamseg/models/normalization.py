"""Which norm + activation layers the parts of the network get."""

from __future__ import annotations

from functools import partial

from seamseg.backbones.residual import NormFactory
from seamseg.errors import InputError
from seamseg.ops.norm import ActivatedGroupNorm, ActivatedIdentity, InPlaceABN, InPlaceABNSync


def norm_factories(mode: str, activation: str, slope: float, gn_groups: int) -> tuple[NormFactory, NormFactory]:
    """Factories for the static part (body, FPN, semantic head) and the dynamic part (RPN, ROI head).

    Parameters
    ----------
    mode : bn, syncbn, gn, off, or two of them joined by `+`: the static and the dynamic part's (SPEC section 2)
    activation, slope : of the layers
    gn_groups : groups of group norm

    Returns
    -------
    static, dynamic : `norm(channels)` or `norm(channels, activation="identity")`

    Raises
    ------
    InputError
        if the mode is unknown
    """
    kinds: dict[str, NormFactory] = {
        "bn": InPlaceABN,
        "syncbn": InPlaceABNSync,
        "gn": partial(ActivatedGroupNorm, num_groups=gn_groups),
        "off": ActivatedIdentity,
    }
    names = mode.split("+")
    if len(names) > 2 or any(name not in kinds for name in names):
        raise InputError(
            f"[body] normalization_mode: unknown mode {mode!r}, give one of {', '.join(kinds)}, or two joined by +"
        )
    made = [partial(kinds[name], activation=activation, activation_param=slope) for name in names]
    return made[0], made[-1]
