"""How a profile names files of rows: one a tensor, or one whose named columns fill several tensors together.

```yaml
kinds:
  a:
    model: ranker
    data: {file: rows.jsonl}               # columns fill the inputs of their names; a row stays together
    # data: {file: rows.jsonl, columns: {input_ids: question}, tokenizer: model/tokenizer.json, order: random}
    # data: {file: rows.jsonl, ignore: [id, label]}      columns that fill no input are refused unless left out here
  b:
    model: classifier
    inputs:
      image: {file: images.npy}            # rows along the first axis; memory-mapped
      # image: {file: images.npz, column: train}
      # title: {file: titles.txt}          # one text a line; of JSONL, one row an entry
      # input_ids: {file: titles.txt, tokenizer: model/}    # token ids by the model's own tokenizer.json
```

Files are relative to the profile's folder.  `order: file` (default) uses rows one after the other and starts
over; `random` shuffles them, each once before any comes again.  A JSON row brings the inputs that it has: one that the
model calls optional may be missing in some rows, and is then left out of their requests.
"""

from pathlib import PurePath
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from loadgen.traffic.parts import Name, Part, as_tuple
from loadgen.traffic.words import near, show_value

DATA_FILES = (".npy", ".npz", ".json", ".jsonl", ".txt")
Order = Literal["file", "random"]


def _path(value: str) -> str:
    if "\0" in value:
        raise ValueError(f"{show_value(value)} is no path: it holds a zero byte")
    return value


def _data_file(value: str) -> str:
    suffix = PurePath(value).suffix.lower()
    if suffix not in DATA_FILES:
        close = near(suffix, DATA_FILES) if suffix else ""
        raise ValueError(f"{show_value(value)}{close} is no file of rows; allowed: {', '.join(DATA_FILES)}")
    return value


LocalPath = Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(_path)]
DataFile = Annotated[LocalPath, AfterValidator(_data_file)]


class Data(Part):
    """Rows for several tensors of a kind, kept together.

    `columns` says which column fills an input; without it, each input takes the column of its own name.  A column
    that fills none is refused, unless `ignore` names it.
    `tokenizer` (a tokenizer.json or its folder) turns texts into token ids for whole-number inputs.
    """

    file: DataFile = Field(examples=["rows.jsonl"])
    columns: dict[Name, Name] | None = None
    ignore: Annotated[tuple[Name, ...], BeforeValidator(as_tuple), Field(max_length=1000)] = ()
    tokenizer: LocalPath | None = None
    order: Order = "file"
