"""The site's copy button: it copies a console block's commands, without prompts and output."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from patience import PATIENCE_S

SCRIPT = Path(__file__).parents[1] / "docs" / "site.js"


@pytest.mark.parametrize(
    ("block", "copied"),
    [
        ("$ dca a \\\n      --b 1\nprinted\n$ dca c\nmore\n", "dca a \\\n      --b 1\ndca c"),
        ("print(1)\n", ""),  # no prompt: the button copies the whole block, as before
    ],
)
@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_copy_button_copies_commands_alone(block: str, copied: str) -> None:
    program = f"console.log(JSON.stringify(require({json.dumps(str(SCRIPT))}).commandsOf({json.dumps(block)})))"
    done = subprocess.run(["node", "-e", program], capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert json.loads(done.stdout) == copied
