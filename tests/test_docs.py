"""The generated references are what the code says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def test_the_references_are_fresh() -> None:
    done = subprocess.run(
        [sys.executable, str(DOCS / "generate.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_stale_reference_is_told(tmp_path: Path) -> None:
    copy = tmp_path / "generate.py"
    copy.write_text((DOCS / "generate.py").read_text())
    done = subprocess.run([sys.executable, str(copy), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "docs/passes.md is stale, run: python docs/generate.py" in done.stderr
    subprocess.run([sys.executable, str(copy)], check=True)
    assert (tmp_path / "dialect.md").read_text() == (DOCS / "dialect.md").read_text()
