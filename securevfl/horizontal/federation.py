"""Settings that server and clients of a federation share: method, parameters, blocks of θ.

Learns: see `Method.learns`, one entry per role.
Source: FedBCGD (ACM MM 2024), section 3 and algorithms 1 and 2.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from operator import index
from types import MappingProxyType
from typing import Literal, Self, SupportsFloat, SupportsIndex, cast, get_args

import numpy as np

from securevfl.arrays import IntArray
from securevfl.errors import ConfigError

SERVER = "server"
Correction = Literal["none", "scaffold", "drift", "variance-reduced"]
WHOLE = "clients", "taking_part", "rounds", "epochs", "batch_size", "seed"
REAL = "learning_rate", "decay", "weight_decay", "clip"
CLIP = 10.0
"""As in public code: FedDC's bounds the gradient with its correction, FedBCGD+'s before it."""


def client_name(client: int) -> str:
    """The party that a client is."""
    return f"client-{client}"


def whole(name: str, value: object) -> int:
    """A whole number as Python's int; ConfigError for anything else."""
    try:
        return index(cast(SupportsIndex, value))
    except TypeError as error:
        raise ConfigError(f"{name} = {value!r}: expected a whole number") from error


def number(name: str, value: object) -> float:
    """A number of Python or NumPy, or a tensor of one, as Python's float.

    Text and anything else that is not a single number raise ConfigError.
    """
    try:
        if not isinstance(value, str | bytes):  # which float would read
            return float(cast(SupportsFloat, value))
    except (OverflowError, RuntimeError, TypeError, ValueError):
        pass
    raise ConfigError(f"{name} = {value!r}: expected a number")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Training settings of M clients, of which m take part in each round.

    Attributes:
        clients: M, numbered from 0.
        rounds: R.
        taking_part: m, a multiple of the number of blocks.
        learning_rate: η0 of clients.
        decay: η of round i is η0·decay^i.
        weight_decay: times θ, added to every gradient after clipping.
        clip: bound on the norm of a step's gradient with its correction; None bounds corrected
            steps by 10 and leaves others as they are, infinity bounds none.
        epochs: E, a client's passes over its own rows in a round.
        batch_size: rows of a client's step; the last step of an epoch takes what is left.
        seed: of who takes part when, and of the order of rows.

    Raises:
        ConfigError: a value that cannot be.
    """

    clients: int
    rounds: int
    taking_part: int = 10
    learning_rate: float = 0.1
    decay: float = 0.998
    weight_decay: float = 1e-3
    clip: float | None = None
    epochs: int = 5
    batch_size: int = 50
    seed: int = 0

    def __post_init__(self) -> None:
        # Python's own types: a federation's digest is of how they are written.
        for name in WHOLE:
            object.__setattr__(self, name, whole(name, getattr(self, name)))
        for name in REAL:
            if name != "clip" or self.clip is not None:
                object.__setattr__(self, name, number(name, getattr(self, name)))
        for name, allowed, expected in (
            *((name, getattr(self, name) >= 1, "expected at least 1") for name in WHOLE[:-1]),
            ("taking_part", self.taking_part <= self.clients, f"there are {self.clients} clients"),
            ("learning_rate", 0 < self.learning_rate < inf, "expected more than 0"),
            ("decay", 0 < self.decay <= 1, "expected more than 0, at most 1"),
            ("weight_decay", 0 <= self.weight_decay < inf, "expected 0 or more"),
            ("clip", self.clip is None or self.clip > 0, "expected more than 0"),
            ("seed", self.seed >= 0, "expected 0 or more"),
        ):
            if not allowed:
                raise ConfigError(f"{name} = {getattr(self, name)}: {expected}")

    def step_size(self, round_index: int) -> float:
        """The step size η in a round, counted from 0."""
        return self.learning_rate * self.decay**round_index

    def batches(self, client: int, rows: int, round_index: int) -> Sequence[IntArray]:
        """The rows of each of a client's steps in a round: E random orders, cut into batches."""
        generator = np.random.default_rng((self.seed, round_index, client))
        cuts = range(self.batch_size, rows, self.batch_size)
        return [
            batch
            for _ in range(self.epochs)
            for batch in np.split(generator.permutation(rows), cuts)
        ]


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
    """A method: how clients correct their steps, and what the server does with mean changes.

    FedAvg is one block without momentum; all others add to it. Ablations are
    `dataclasses.replace(method, ...)`: `freezes=True` (a client trains what it uploads and nothing
    else), `momentum=0.0`; without a shared block is `Blocks` without one (FedBCGD, figure 5).

    Attributes:
        name: as it is chosen by.
        blockwise: whether clients upload a block each; else there is one block of everything.
        momentum: χ of the server: velocity ← χ·velocity + mean change.
        adam: the server's step in place of momentum.
        correction: of a client's steps, see `client.local_training`.
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
        """Whether the method has control variates, which are sent along with θ."""
        return self.correction != "none"

    @property
    def learns(self) -> Mapping[str, str]:
        """Who learns what, by role, if uploads are not protected."""
        part = "its block's and the shared block's change" if self.blockwise else "all its change"
        control = ", and of its control variates in the same entries" if self.corrects else ""
        return {
            "server": f"from each participating client: {part} over a round's local "
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
    Method("fedbcgd", blockwise=True),
    Method("fedbcgd+", blockwise=True, momentum=0.45, correction="scaffold"),
    Method("fedbcgd+:printed", blockwise=True, momentum=0.8, correction="variance-reduced"),
)
METHODS: Mapping[str, Method] = MappingProxyType({method.name: method for method in _ALL})


def method_named(name: str) -> Method:
    """The method of a name, with the papers' settings; ConfigError if there is none."""
    if name not in METHODS:
        raise ConfigError(f"method = {name!r}: expected one of {', '.join(METHODS)}")
    return METHODS[name]


@dataclass(frozen=True, eq=False)
class Blocks:
    """A partition of the p entries of θ: a client uploads one block and the shared one.

    Source: FedBCGD (ACM MM 2024), section 3: N blocks, here b, and the shared block x_s of last
    layers.

    Attributes:
        own: of each block, its entries in ascending order; none is empty.
        shared: the entries of the shared block in ascending order; may be empty.

    Raises:
        ConfigError: an entry in two blocks or in none, or a block without entries.
    """

    own: tuple[IntArray, ...]
    shared: IntArray

    def __post_init__(self) -> None:
        every = np.concatenate([*self.own, self.shared])
        if not np.array_equal(np.sort(every), np.arange(len(every))):
            raise ConfigError("blocks: expected every parameter in one block")
        if not all(len(block) for block in self.own):
            raise ConfigError("blocks: one holds no parameters")

    def __len__(self) -> int:
        return len(self.own)

    @property
    def parameters(self) -> int:
        """The number of parameters in θ, p."""
        return sum(map(len, self.own)) + len(self.shared)

    def uploaded(self, block: int) -> IntArray:
        """The entries that a client uploads: those of its block, then the shared ones."""
        return np.concatenate([self.own[block], self.shared])

    @classmethod
    def whole(cls, parameters: int) -> Self:
        """One block with all parameters, for methods without blocks."""
        return cls((np.arange(parameters),), np.arange(0))

    @classmethod
    def equal(cls, sizes: Mapping[str, int], blocks: int, shared: Collection[str] = ()) -> Self:
        """Blocks of equal numbers of parameters; a tensor may be cut.

        Args:
            sizes: numbers in each tensor of the model, by its name, in the order of θ.
            blocks: b.
            shared: names of the shared tensors, or of layers that hold them ("fc2").

        Raises:
            ConfigError: a shared name that is no tensor's, or fewer parameters than blocks.
        """
        entries, common = _entries(sizes, shared)
        own = np.concatenate([*entries, np.arange(0)])
        _require_enough(len(own), blocks, "parameters")
        return cls(tuple(np.array_split(own, blocks)), common)

    @classmethod
    def by_layers(cls, sizes: Mapping[str, int], blocks: int, shared: Collection[str] = ()) -> Self:
        """Blocks of whole tensors; arguments as in `equal`.

        The largest tensor is first, and each goes to the block that holds least.

        Raises:
            ConfigError: a shared name that is no tensor's, or fewer tensors than blocks.
        """
        entries, common = _entries(sizes, shared)
        _require_enough(len(entries), blocks, "tensors")
        groups: list[list[IntArray]] = [[] for _ in range(blocks)]
        for tensor in sorted(entries, key=len, reverse=True):
            min(groups, key=lambda group: sum(map(len, group))).append(tensor)
        return cls(tuple(np.sort(np.concatenate(group)) for group in groups), common)


def _require_enough(available: int, blocks: int, what: str) -> None:
    if not 1 <= whole("blocks", blocks) <= available:
        raise ConfigError(f"blocks = {blocks}: expected 1 to {available}, the unshared {what}")


def _entries(sizes: Mapping[str, int], shared: Collection[str]) -> tuple[list[IntArray], IntArray]:
    """The entries of each tensor that is not shared, and those of all that are."""
    if not isinstance(sizes, Mapping):
        raise ConfigError(f"sizes: expected numbers by name, not a {type(sizes).__name__}")
    names = [shared] if isinstance(shared, str) else shared
    for name in names:
        if not any(_is_in(tensor, name) for tensor in sizes):
            raise ConfigError(f"shared = {name!r}: the model's tensors are {', '.join(sizes)}")
    ends = np.cumsum(list(sizes.values()))
    apart, common = list[IntArray](), [np.arange(0)]
    for (tensor, size), end in zip(sizes.items(), ends, strict=True):
        held = common if any(_is_in(tensor, name) for name in names) else apart
        held.append(np.arange(end - size, end))
    return apart, np.concatenate(common)


def _is_in(tensor: str, name: str) -> bool:
    return tensor == name or tensor.startswith(f"{name}.")


@dataclass(frozen=True, eq=False)
class Federation:
    """A method with its settings on a model with its blocks.

    There is one block of everything where the method is not blockwise, whatever was given.

    Raises:
        ConfigError: b does not divide m.
    """

    method: Method
    settings: Settings
    blocks: Blocks

    def __post_init__(self) -> None:
        if not self.method.blockwise:
            object.__setattr__(self, "blocks", Blocks.whole(self.blocks.parameters))
        taking_part, blocks = self.settings.taking_part, len(self.blocks)
        if taking_part % blocks:
            fits = [n for n in range(1, taking_part + 1) if taking_part % n == 0]
            raise ConfigError(
                f"blocks = {blocks}: groups of one size need a divisor of taking_part = "
                f"{taking_part}, one of {', '.join(map(str, fits))}"
            )

    @property
    def digest(self) -> bytes:
        """SHA-256 of what server and clients must agree on: the job hash in envelopes."""
        said = hashlib.sha256(repr((self.method, self.settings)).encode())
        for entries in (*self.blocks.own, self.blocks.shared):
            said.update(np.int64(len(entries)).tobytes() + entries.astype("<i8").tobytes())
        return said.digest()

    @property
    def clip(self) -> float:
        """The bound on the norm of a step's gradient with its correction; may be infinite."""
        if self.settings.clip is None:
            return CLIP if self.method.corrects else inf
        return self.settings.clip

    @property
    def group_size(self) -> int:
        """Number of clients that upload the same block, m/b: the paper's K."""
        return self.settings.taking_part // len(self.blocks)

    def assignments(self, round_index: int) -> Mapping[int, int]:
        """The block of each client that takes part in a round.

        That is m of M without replacement, cut into groups in the order of the draw.

        Source: FedBCGD, algorithm 1.
        """
        clients = self.settings.clients
        # Where a client's own draws have its number stands one that no client has.
        generator = np.random.default_rng((self.settings.seed, round_index, clients))
        drawn = generator.choice(clients, self.settings.taking_part, replace=False)
        return {int(client): place // self.group_size for place, client in enumerate(drawn)}
