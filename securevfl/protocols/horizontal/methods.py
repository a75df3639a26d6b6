"""Every method as one description: what a client corrects, and what the server does with means.

FedAvg is one block without momentum; all others add to it. Ablations are
`dataclasses.replace(method, ...)`: `freezes=True` (a client trains what it uploads and nothing
else), `momentum=0.0`; without a shared block is `Blocks` without one (FedBCGD, figure 5).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from types import MappingProxyType
from typing import Literal, get_args

from securevfl.errors import ConfigError
from securevfl.protocols.horizontal.settings import number

Correction = Literal["none", "scaffold", "drift", "variance-reduced"]


@dataclass(frozen=True)
class Adam:
    """The server's adaptive step (Reddi et al. 2021, algorithm 2, FedAdam).

    Attributes:
        step_size: of the server.
        first: decay of the mean change's mean (β₁ there).
        second: decay of its square's (β₂).
        floor: added to the root of the second moment, which starts at its square (τ).
    """

    step_size: float = 0.01
    first: float = 0.9
    second: float = 0.99
    floor: float = 1e-3

    def __post_init__(self) -> None:
        if not (self.step_size > 0 and self.floor > 0):
            raise ConfigError(f"{self}: expected step_size and floor above 0")
        if not (0 <= self.first < 1 and 0 <= self.second < 1):
            raise ConfigError(f"{self}: expected first and second in [0, 1)")


@dataclass(frozen=True)
class Method:
    """One method of the family.

    Attributes:
        name: as it is chosen by.
        blockwise: whether clients upload a block each; else there is one block of everything.
        momentum: χ of the server: velocity ← χ·velocity + mean change.
        adam: the server's step in place of momentum.
        correction: of a client's steps, see `local.local_training`.
        pull: weight of ½‖drift + θ − θ⁰‖² under correction "drift" (FedDC's α).
        freezes: whether a client leaves what it does not upload as it is (an ablation).
    """

    name: str
    blockwise: bool = False
    momentum: float = 0.0
    adam: Adam | None = None
    correction: Correction = "none"
    pull: float = 0.0
    freezes: bool = False

    def __post_init__(self) -> None:
        for name in ("momentum", "pull"):
            object.__setattr__(self, name, number(name, getattr(self, name)))
        if self.correction not in get_args(Correction):
            known = ", ".join(get_args(Correction))
            raise ConfigError(f"correction = {self.correction!r}: expected one of {known}")
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"momentum = {self.momentum}: expected 0 or more, and less than 1")
        if self.adam is not None and self.momentum:
            raise ConfigError(f"momentum = {self.momentum}: adam has its own, `Adam.first`")
        if self.correction == "drift" and (self.blockwise or self.momentum or self.adam):
            raise ConfigError("FedDC adds the mean drift to θ: no blocks, momentum or adam")
        if (self.pull and self.correction != "drift") or not 0 <= self.pull < inf:
            raise ConfigError(f"pull = {self.pull}: FedDC's alone, and 0 or more")

    @property
    def corrects(self) -> bool:
        """Whether there are control variates, which travel beside θ."""
        return self.correction != "none"

    @property
    def learns(self) -> Mapping[str, str]:
        """Who learns what, by role, where nothing protects uploads."""
        part = "its block's and the shared block's change" if self.blockwise else "all its change"
        control = ", and of its control variates in the same entries" if self.corrects else ""
        return {
            "server": f"of each client that takes part, singly: {part} over a round's local "
            f"training{control}; from these its rows can be estimated",
            "client": "θ in the rounds that it takes part in"
            + (", with the mean control variate" if self.corrects else ""),
        }


_ALL = (
    Method("fedavg"),
    Method("fedavgm", momentum=0.8),
    Method("fedadam", adam=Adam()),
    Method("scaffold", correction="scaffold"),
    Method("feddc", correction="drift", pull=0.1),
    Method("fedbcgd", blockwise=True, momentum=0.8),
    Method("fedbcgd+", blockwise=True, momentum=0.8, correction="variance-reduced"),
)
METHODS: Mapping[str, Method] = MappingProxyType({method.name: method for method in _ALL})


def method_named(name: str) -> Method:
    """The method of a name, with the papers' settings.

    Raises:
        ConfigError: there is none.
    """
    if name not in METHODS:
        raise ConfigError(f"method = {name!r}: expected one of {', '.join(METHODS)}")
    return METHODS[name]
