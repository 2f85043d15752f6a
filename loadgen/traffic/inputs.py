"""How a profile says that a tensor be filled: by a law, or from a file of rows.

It must not know tensors' bytes, what a model accepts or what the files hold.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from loadgen.traffic.data import DATA_FILES, DataFile, LocalPath, Order
from loadgen.traffic.lengths import Positive, Tokens
from loadgen.traffic.parts import Name, Part, as_tuple
from loadgen.traffic.words import show_value


class _Ordered(Part):
    @model_validator(mode="after")
    def _in_order(self) -> Self:
        low, high = getattr(self, "min"), getattr(self, "max")  # noqa: B009 - declared by those below
        if low > high:
            raise ValueError(f"min {low} is more than max {high}; swap them")
        return self


class Integers(_Ordered):
    """Whole numbers from min to max, both included, equally likely."""

    min: Annotated[int, Field(ge=-(2**63), le=2**64 - 1)] = Field(examples=["0"])
    max: Annotated[int, Field(ge=-(2**63), le=2**64 - 1)] = Field(examples=["30521"])


class Reals(_Ordered):
    """Real numbers from min to max, equally likely."""

    min: float = Field(examples=["0"])
    max: float = Field(examples=["1"])


class Gauss(Part):
    """Normal numbers."""

    mean: float = Field(examples=["0"])
    sd: Positive = Field(examples=["1"])


class Text(_Ordered):
    """Random words of min to max bytes."""

    min: Tokens = Field(examples=["8"])
    max: Tokens = Field(examples=["64"])


def _constant(value: Any) -> Any:
    if not isinstance(value, bool | int | float | str):
        raise ValueError(f"{show_value(value)} is neither a number, nor true or false, nor text")  # noqa: TRY004
    return value


def _dimension(value: Any) -> Any:
    if value == "length" or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    raise ValueError(
        f'{show_value(value)} is no dimension; allowed: a whole number of 1 or more, or "length"'
    )


Dimension = Annotated[int | Literal["length"], BeforeValidator(_dimension)]


LAWS = ("integers", "uniform", "normal", "text", "constant", "file")
_OF_FILES = ("column", "tokenizer", "order")


class Fill(Part):
    """One tensor: at most one law or file, and the shape of a row where the model leaves more than one axis free.

    `column` is the key of JSON rows or the array of an .npz (default: the input's name, or the only one);
    `tokenizer` (a tokenizer.json or its folder) turns texts into token ids.
    """

    integers: Integers | None = None
    uniform: Reals | None = None
    normal: Gauss | None = None
    text: Text | None = None
    constant: Annotated[bool | int | float | str, BeforeValidator(_constant)] | None = None
    file: DataFile | None = None
    column: Name | None = None
    tokenizer: LocalPath | None = None
    order: Order = "file"
    shape: Annotated[tuple[Dimension, ...], BeforeValidator(as_tuple), Field(max_length=16)] | None = None

    @model_validator(mode="after")
    def _one_law(self) -> Self:
        given = [key for key in LAWS if getattr(self, key) is not None]
        if len(given) > 1:
            raise ValueError(f"takes one of {', '.join(LAWS)}; given: {' and '.join(given)}")
        for key in _OF_FILES:
            if self.file is None and key in self.model_fields_set:
                raise ValueError(
                    f"{key} goes with file only; add file: rows.jsonl (or {', '.join(DATA_FILES)})"
                )
        if not given and self.shape is None:
            raise ValueError(f"is empty; give it one of {', '.join(LAWS)}, or a shape")
        return self

    @property
    def law(self) -> str | None:
        """The name of the law given ("file" for rows), None when only a shape is."""
        return next((key for key in LAWS if getattr(self, key) is not None), None)
