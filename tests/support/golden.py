"""Writes the golden files anew: python -m tests.support.golden.  Read the diff before committing it.

The kept run in tests/fixtures is not rewritten: it stands for folders that people already have.
"""

import io
import tempfile
from pathlib import Path

from rich.console import Console

from loadgen.analysis.summary import summarise
from loadgen.report.text import print_summary
from loadgen.report.write import dumps
from tests.support.example_run import example

ROOT = Path(__file__).parent.parent

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        summary = summarise(example(Path(folder) / "run"))
    file = io.StringIO()
    print_summary(summary, Console(file=file, width=80, highlight=False), Path("runs/x.html"))
    lines = [line.rstrip() for line in file.getvalue().splitlines()]
    (ROOT / "golden" / "summary.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    kept = ROOT / "fixtures" / "run-format-1"
    if not kept.exists():
        example(kept)
    (ROOT / "golden" / "run-format-1.summary.json").write_text(dumps(summarise(kept)), encoding="utf-8")
