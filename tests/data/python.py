"""Runs a test with the Python that ATOLL_TEST_PYTHON names, and finds the parts of the source."""
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parent.parent
TOOL = SOURCE / "tools" / "data" / "atoll-data"

wanted = os.environ.pop("ATOLL_TEST_PYTHON", None)
if wanted:
    os.execv(wanted, [wanted, *sys.argv])
sys.path.insert(0, str(SOURCE / "tools" / "data"))
sys.dont_write_bytecode = True
os.environ["HF_HUB_OFFLINE"] = "1"


def has(*modules):
    """Whether Python packages can be imported; prints the reason if not."""
    for module in modules:
        try:
            __import__(module)
        except ImportError:
            print(f"skipped a part: no Python package {module} (pip install {module}, or set "
                  "ATOLL_TEST_PYTHON)")
            return False
    return True


def atoll_data(*arguments, code=0, env=None):
    """Runs atoll-data and returns what it printed, after checking its exit code."""
    done = subprocess.run([sys.executable, TOOL, *map(str, arguments)], capture_output=True, text=True,
                          env=os.environ | (env or {}) | {"PYTHONDONTWRITEBYTECODE": "1"})
    text = done.stdout + done.stderr
    assert done.returncode == code, f"atoll-data {arguments}: exit code {done.returncode}\n{text}"
    if code == 1:
        assert text.startswith("atoll-data: ") and text.count("\n") == 1, f"not one line:\n{text}"
    return text
