"""Put the tables of `scripts/results/` into README.md, between its `results` marks. --check only says whether they are.

.venv/bin/python scripts/readme_tables.py [--check]
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
MARKS = re.compile(r"(<!-- results: (?P<names>[\w\- ]+) -->\n).*?(<!-- /results -->)", re.DOTALL)


def section(match: re.Match[str]) -> str:
    """The named results, each under a smaller heading."""
    results = (ROOT / "scripts" / "results" / f"{name}.md" for name in match["names"].split())
    text = "\n".join(path.read_text().replace("# ", "### ", 1) for path in results)
    return f"{match[1]}\n{text}\n{match[3]}"


def main() -> None:
    readme = ROOT / "README.md"
    before = readme.read_text()
    after = MARKS.sub(section, before)
    if "--check" not in sys.argv:
        readme.write_text(after)
    elif after != before:
        sys.exit("README.md does not show scripts/results/ as it is: run scripts/readme_tables.py")


if __name__ == "__main__":
    main()
