"""A figure: one value of a data file, with where it comes from and how far to trust it."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, field_validator

T = TypeVar("T", bound=float)
Floats = NDArray[np.float64]

Grade = Literal["datasheet", "measured", "scaled", "assumed"]
"""datasheet: a vendor's statement. measured: a timing of this part. scaled: a timing of another part, carried over in
proportion. assumed: nobody's statement; a guess that the report names as one."""

Share = Annotated[float, Field(gt=0, le=1.5)]
"""A fraction of a peak. May pass 1 where the traffic that is counted is partly served by a cache."""


def rising(points: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
    """*points* as they are, by size. Raise :exc:`ValueError` where a size is not above the one before."""
    for (left, _), (right, _) in pairwise(points):
        if left >= right:
            raise ValueError(f"sizes must rise from point to point, found {left:g} before {right:g}")
    return points


class Record(BaseModel):
    """A part of a hardware file: immutable, and closed to keys it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Figure(Record, Generic[T]):
    """A value in SI with its source. A figure is never zero: what is not known is left out of the file."""

    value: T
    source: Annotated[str, Field(min_length=1)]
    grade: Grade

    @field_validator("value")
    @classmethod
    def _not_zero(cls, value: T) -> T:
        if value <= 0:
            raise ValueError(f"found {value!r}; a figure is above zero, leave it out when it is not known")
        return value
