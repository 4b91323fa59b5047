"""tools/first_job.py: what it takes out of README.md, and how it fails. The job itself: make release."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tools import first_job
from tools.first_job import FirstJobError

README = """
## A first job

Text.

```python
print("a batch")
```

It ends with `a batch`.

## Next
"""


@pytest.mark.parametrize(("said", "ends"), [("a batch", True), ("two batches", False)])
def test_the_job_ends_as_the_readme_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, ends: bool
) -> None:
    (tmp_path / "README.md").write_text(README.replace('print("a batch")', f'print("{said}")'))
    monkeypatch.setattr(first_job, "ROOT", tmp_path)
    python = Path(sys.executable)
    if ends:
        first_job.run_job(python, tmp_path)
    else:
        with pytest.raises(FirstJobError, match=r"the job has printed .*two batches.* and not 'a batch'"):
            first_job.run_job(python, tmp_path)
