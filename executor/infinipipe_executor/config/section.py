"""What all sections of a configuration have in common."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

MIB_BYTES = 2**20

# Beyond these, what counts in 32 bits or takes a time in milliseconds would overflow far from here.
MAX_COUNT = 2**31 - 1
MAX_SEED = 2**32 - 1
WEEK_S = 7 * 24 * 3600.0

Positive = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Seconds = Annotated[float, Field(gt=0, le=WEEK_S)]
Ratio = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    """Base of all sections: nothing unknown, nothing converted, nothing changed later."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)
