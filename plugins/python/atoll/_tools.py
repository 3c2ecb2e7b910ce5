"""The programs that come with the package: atoll-topo, atoll-busbw, atoll-plan."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn

from ._errors import BadData, Error, InvalidArgument, NotFound
from ._library import folder


def program(name: str) -> Path:
    """The path of a program of the package."""
    path = folder() / "bin" / name
    if not path.exists():
        raise NotFound(f"{path} does not exist: this atoll was built without the program {name}")
    return path


def report(name: str, *arguments: str) -> Any:
    """Runs a program that prints JSON. Its message is the text of the error."""
    # As a job of its own: under a launcher the program would otherwise join the job of this process.
    alone = {**os.environ, "ATOLL_RANK": "0", "ATOLL_SIZE": "1"}
    done = subprocess.run([program(name), *arguments], capture_output=True, text=True, check=False,
                          env=alone)
    if not done.stdout.startswith("{"):
        message = done.stderr.strip() or f"{name} ended with status {done.returncode}"
        raise (InvalidArgument if done.returncode == 2 else Error)(message)
    try:
        return json.loads(done.stdout)
    except ValueError as error:
        raise BadData(f"{name} printed JSON that ends early or is malformed: {error}") from error


def report_on(text: str, name: str, *arguments: str) -> Any:
    """The same with `--from` a file that contains `text`."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(text)
        file.flush()
        return report(name, "--from", file.name, *arguments)


def _become(name: str) -> NoReturn:
    path = program(name)
    os.execv(path, [str(path), *sys.argv[1:]])


def topo() -> NoReturn:
    """Runs atoll-topo with the arguments of this process."""
    _become("atoll-topo")


def busbw() -> NoReturn:
    """Runs atoll-busbw with the arguments of this process."""
    _become("atoll-busbw")


def plan() -> NoReturn:
    """Runs atoll-plan with the arguments of this process."""
    _become("atoll-plan")
