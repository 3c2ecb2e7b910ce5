"""Compiles the part of the backend that depends on the version of torch, once for each version.

The classes of c10d change with each minor version of torch and have no stable ABI, so this part is
compiled against the torch that is there. The result is in the cache folder of the user.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import torch

from .._errors import Error
from .._library import folder

_NAME = "_atoll_c10d"


def _sources() -> list[Path]:
    return sorted((Path(__file__).parent / "csrc").glob("*.cpp"))


def _library_folder() -> Path:
    return (folder() / "lib").resolve()


def _cache() -> Path:
    """The folder of the compiled module: one for each version of torch, Python and this code."""
    state = hashlib.sha256()
    headers = sorted((Path(__file__).parent / "csrc").glob("*.hpp"))
    for path in [*_sources(), *headers, folder() / "include/atoll/atoll.h"]:
        state.update(path.read_bytes())
    state.update(str(_library_folder()).encode())
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    python = sysconfig.get_config_var("py_version_nodot")
    return base / "atoll" / f"torch-{torch.__version__}-py{python}" / state.hexdigest()[:16]


def _check_tools(path: str) -> None:
    once = "which atoll.torch needs once for each version of torch"
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise Error(f"there is no C++ compiler {compiler}, {once}: install g++ (Debian: apt-get "
                    "install g++), or set CXX")
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.exists():
        raise Error(f"there is no {header}, {once}: install the headers of Python (Debian: "
                    "apt-get install python3-dev)")
    if shutil.which("ninja", path=path) is None:
        raise Error(f"there is no ninja, {once}: pip install ninja")


def _compile(cache: Path) -> None:
    from torch.utils import cpp_extension  # warns about missing CUDA, so only when it is needed

    scripts = sysconfig.get_path("scripts")  # ninja of the environment
    _check_tools(os.environ["PATH"] + os.pathsep + scripts)
    (cache / "lock").unlink(missing_ok=True)  # of torch 2.7 and earlier, from a process that died
    print(f"atoll: compiling the backend for torch {torch.__version__}, about a minute, into "
          f"{cache}", file=sys.stderr, flush=True)
    os.environ["PATH"] += os.pathsep + scripts
    library = _library_folder()
    include = folder() / "include"
    try:
        cpp_extension.load(
            _NAME, [str(path) for path in _sources()], extra_include_paths=[str(include)],
            extra_cflags=["-std=c++20", "-O2", "-w"],
            extra_ldflags=[f"-L{library}", "-l:libatoll.so.0.1", f"-Wl,-rpath,{library}"],
            build_directory=str(cache), verbose=False, is_python_module=False)
    except (RuntimeError, OSError) as error:
        lines = [line for line in str(error).splitlines() if "error:" in line.lower()]
        raise Error(f"the backend does not compile for torch {torch.__version__}: "
                    + ("\n".join(lines[:5]) or str(error))) from None
    finally:
        os.environ["PATH"] = os.environ["PATH"].removesuffix(os.pathsep + scripts)


def load() -> ModuleType:
    """Returns the compiled module; compiles it first if need be. Processes that call this at the
    same time compile it once."""
    cache = _cache()
    binary = cache / f"{_NAME}.so"
    if not (cache / "complete").exists():
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / "compiling").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # ends with the process
            if not (cache / "complete").exists():
                _compile(cache)
                (cache / "complete").touch()
    spec = importlib.util.spec_from_file_location(_NAME, binary)
    if spec is None or spec.loader is None:
        raise Error(f"{binary} does not load: remove {cache}")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except ImportError as error:
        raise Error(f"{binary} does not load ({error}): remove {cache}") from error
    return module
