"""docs/contribute/claims-security.md names a test for each defence: each is there, under that name."""

import os
import pathlib
import re

SOURCE = pathlib.Path(os.environ["FREERIDE_SOURCE_DIR"])


def test_every_test_that_the_threat_model_names_is_there():
    text = (SOURCE / "docs/contribute/claims-security.md").read_text()
    rows = re.findall(r"^\|(?!---| who | attack | what ).*\|$", text, re.M)
    assert len(rows) > 15
    for row in rows:
        named = re.findall(r'`([^`]+)`: "([^"]+)"', row.split("|")[-2])
        assert named, f"no test is named: {row}"
        for file, name in named:
            source = re.sub(r'"\s*\n\s*"', "", (SOURCE / file).read_text())  # a name over two lines
            assert name in source, f"{file} has no test {name!r}"
