"""Runs PyTorch's own tests of torch.distributed over atoll.

  run BUILD torch_suite [--source FOLDER] [--list] [--only NAME] [FILE...]

Without FILE the tests are those of distributed_test, which the wheel of torch contains, and, with
--source (or ATOLL_PYTORCH_SOURCE), those of functional collectives, DeviceMesh, DTensor, FSDP2 and
new members in that source checkout of PyTorch, which must be of the version of torch. The tests
choose what to run as for Gloo, and each group of Gloo becomes one of atoll. A test whose ranks open
no group of atoll (they are threads, or need GPUs) is not applicable. torch_suite.txt lists the
tests that fail, with the reasons; the exit status is 1 if another one fails.
"""

import argparse
import importlib.util
import mmap
import os
import sys
import tempfile
import time
import unittest
from pathlib import Path

os.environ.setdefault("BACKEND", "gloo")
os.environ.setdefault("WORLD_SIZE", "4")
os.environ.setdefault("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", "300")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
if "TEMP_DIR" not in os.environ:
    os.environ["TEMP_DIR"] = tempfile.mkdtemp()
    for folder in ("barrier", "test_dir", "init_dir"):
        os.mkdir(os.path.join(os.environ["TEMP_DIR"], folder))

import torch
import torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcessTestCase, MultiThreadedTestCase
from torch.testing._internal.distributed import distributed_test

import atoll.torch
from atoll.torch import _build, _group


class Name(str):
    """The name of atoll, which the tests take for Gloo's where they choose what to do."""

    def __eq__(self, other):
        return other in ("atoll", "gloo")

    __hash__ = str.__hash__


SOURCES = ("test_c10d_fault_tolerance.py", "test_functional_api.py",
           "test_c10d_functional_native.py", "test_inductor_collectives.py",
           "test_c10d_object_collectives.py", "test_device_mesh.py",
           "_tensor/test_*.py", "tensor/**/test_*.py", "_composable/fsdp/test_*.py",
           "_composable/test_composability/test_2d_composability.py")
# 1 once a rank of the running test has opened a group of atoll. Ranks are forks of this process.
opened = mmap.mmap(-1, 1)


def open_group(*args, **options):
    opened[0] = 1
    return _group._open(*args, **options)


class IsAtoll(type):
    def __instancecheck__(cls, value):
        return isinstance(value, _build.load().Backend)


class GlooBefore14(metaclass=IsAtoll):
    """Stands for ProcessGroupGloo in torch 2.13 and earlier, where Gloo is no plugin of c10d."""

    def __new__(cls, store, rank, size, timeout):
        opened[0] = 1
        name, ranks = cls.group
        return _build.load().open(store, rank, size, name, list(ranks), timeout, False)

    @classmethod
    def replace(cls):
        c10d = dist.distributed_c10d
        helper = c10d._new_process_group_helper

        def note_group(size, rank, ranks, backend, store, group_name, *args, **options):
            cls.group = group_name, ranks
            return helper(size, rank, ranks, backend, store, group_name, *args, **options)
        c10d._new_process_group_helper = note_group
        c10d.ProcessGroupGloo = cls


plugins = dist.Backend._plugins
plugins["ATOLL"] = plugins["ATOLL"]._replace(creator_fn=open_group)
if torch.torch_version.TorchVersion(torch.__version__) >= (2, 14):
    plugins["GLOO"] = plugins["ATOLL"]
else:
    GlooBefore14.replace()
distributed_test.BACKEND = Name("atoll")  # of the default group
# The processes of a test are forks of this one, so that they need not import torch again.
MultiProcessTestCase._spawn_processes = lambda test: test._start_processes(
    torch.multiprocessing.get_context("fork").Process)

def let_fsdp_run_on_cpus():
    """FSDPTest of torch 2.15 skips tests that run on CPUs too, unless there is a GPU for each rank;
    its base class skips only those that need one."""
    from torch.testing._internal import common_fsdp
    if hasattr(common_fsdp, "FSDPTestMixin") and "_run" in vars(common_fsdp.FSDPTest):
        del common_fsdp.FSDPTest._run


KNOWN = dict(line.split(maxsplit=1) for line in
             Path(__file__).with_suffix(".txt").read_text().splitlines()
             if line.strip() and not line.startswith("#"))


class OverAtoll(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    """The tests of the wheel, as PyTorch starts them on several processes."""

    def setUp(self):
        super().setUp()
        self._spawn_processes()


def source_files(folder):
    tests = folder / "test/distributed"
    return sorted({path for pattern in SOURCES for path in tests.glob(pattern)})


def tests_of(path):
    let_fsdp_run_on_cpus()
    sys.path.insert(0, str(path.parent))
    name = path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        text = f"{path.name} does not load: {error}"

        def fail(test):
            raise RuntimeError(text)
        return type("Loading", (unittest.TestCase,), {f"test_{name}": fail})(f"test_{name}")
    return unittest.defaultTestLoader.loadTestsFromModule(module)


def flat(suite):
    if isinstance(suite, unittest.TestCase):
        yield suite
        return
    for test in suite:
        yield from flat(test)


def reason_of(error):
    lines = [line for line in error.strip().splitlines() if line.strip()]
    words = [line for line in lines if "Error" in line and "Caught" not in line]
    return (words or lines)[-1].strip()[:200]


def outcome(test):
    result = unittest.TestResult()
    opened[0] = 0
    test.run(result)
    if result.skipped:
        return "not applicable", result.skipped[0][1]
    bad = result.errors + result.failures
    if bad:
        return "failed", reason_of(bad[0][1])
    return ("passed", "") if opened[0] else ("not applicable", "opens no group")


def run(test):
    """Runs a test in a process of its own, because some tests leave a group or a patch behind."""
    if isinstance(test, MultiThreadedTestCase):
        return "not applicable", "its ranks are threads", 0
    begin = time.monotonic()
    mine, theirs = torch.multiprocessing.Pipe()
    process = torch.multiprocessing.get_context("fork").Process(
        target=lambda: theirs.send(outcome(test)))
    process.start()
    theirs.close()
    try:
        state, why = mine.recv()
    except EOFError:
        state, why = "failed", "its process ended"
    process.join()
    return state, why, time.monotonic() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, default=os.environ.get("ATOLL_PYTORCH_SOURCE"),
                        help="a source checkout of PyTorch; default: $ATOLL_PYTORCH_SOURCE")
    parser.add_argument("--list", action="store_true", help="print the tests and end")
    parser.add_argument("--only", default="", help="run the tests whose names contain this")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    options = parser.parse_args()
    suites = [] if options.files else [unittest.defaultTestLoader.loadTestsFromTestCase(OverAtoll)]
    files = options.files or (source_files(Path(options.source)) if options.source else [])
    suites += [tests_of(path.resolve()) for path in files]
    tests = [test for suite in suites for test in flat(suite) if options.only in test.id()]
    counts = {"passed": 0, "failed": 0, "failed as known": 0, "not applicable": 0}
    for number, test in enumerate(tests, 1):
        name = test.id().rsplit(".", 1)[-1]
        if options.list:
            print(name)
            continue
        state, why, seconds = run(test)
        if state == "failed" and name in KNOWN:
            state, why = "failed as known", KNOWN[name]
        counts[state] += 1
        print(f"{number:3}/{len(tests)} {state:15} {seconds:5.1f} s  {name}  {why}", flush=True)
    if not options.list:
        print(", ".join(f"{count} {state}" for state, count in counts.items()))
    sys.exit(counts["failed"] > 0)


if __name__ == "__main__":
    main()
