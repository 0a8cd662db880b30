"""Types of the public signatures: arrays, and the allowed strings of options.

Inside the package an array is `protocol.Array`, which is Any, as the standard publishes no type of arrays. Public
signatures use the common attributes of all libraries.
"""

from __future__ import annotations

from types import EllipsisType
from typing import Any, Literal, ParamSpec, Protocol, TypeAlias, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
ArrayT = TypeVar("ArrayT")
ArrayT_co = TypeVar("ArrayT_co", covariant=True)


class AnyArray(Protocol):
    """An array of any library and dtype: an object with a shape and a dtype."""

    @property
    def shape(self) -> Any:
        """Lengths of the axes."""
        ...

    @property
    def dtype(self) -> Any:
        """Dtype of the library."""
        ...


class ArrayOf(AnyArray, Protocol[ArrayT_co]):
    """An array of the library whose arrays are `ArrayT_co`.

    The result of a loss does not have the argument's own type, which may be a parameter, or in NumPy's stubs an array
    with two axes. ``x[...]`` has the array type of the library, and keeps the dtype where that is typed.
    """

    def __getitem__(self, key: EllipsisType, /) -> ArrayT_co:
        """Entries at a key."""
        ...


BlockSize: TypeAlias = int | Literal["auto"] | None
Precision: TypeAlias = Literal["high", "highest"]
ReductionName: TypeAlias = Literal["mean", "sum", "none"]

ObjectiveName: TypeAlias = Literal["info_nce", "flat_nce", "logistic"]
PairingName: TypeAlias = Literal["diagonal", "two_views"]
SimilarityName: TypeAlias = Literal["dot", "cosine", "neg_sq_euclidean", "neg_euclidean", "cauchy"]

Averaging: TypeAlias = Literal["all", "nonzero"]
DivideBy: TypeAlias = Literal["rows", "pairs", "active"]
FlatForm: TypeAlias = Literal["log", "detach"]
MultiPositive: TypeAlias = Literal["each", "pooled", "separate"]
RelicDirection: TypeAlias = Literal["a_to_b", "b_to_a"]
StoppedSide: TypeAlias = Literal["first", "second"]
TripletForm: TypeAlias = Literal["margin", "soft"]
MiningName: TypeAlias = Literal["batch_all", "batch_hard", "semi_hard"]
MiningRule: TypeAlias = Literal["all", "hard", "semi_hard", "easy"]
Mining: TypeAlias = MiningName | tuple[MiningRule, MiningRule]

AnchorForm: TypeAlias = Literal["bound", "plug_in"]
GradientsOfRanks: TypeAlias = Literal["averaged", "summed"]
JointDirection: TypeAlias = Literal["query_to_key", "query_to_query", "key_to_query", "key_to_key"]
MarginStrategy: TypeAlias = Literal["absolute", "relative"]
NegativesOfViews: TypeAlias = Literal["batch", "views"]
