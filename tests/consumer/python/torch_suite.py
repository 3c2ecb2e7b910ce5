"""Runs PyTorch's own tests of torch.distributed over atoll.

  run BUILD torch_suite [--list] [--only NAME] [FILE...]     torch 2.14 or later

Without FILE the tests are those of distributed_test, which the wheel of torch contains. A FILE is a
test of a source checkout, such as CHECKOUT/test/distributed/test_c10d_fault_tolerance.py. The tests
choose what to run as for Gloo, and each group of Gloo becomes one of atoll. torch_suite.txt lists the
tests that fail, with the reasons; the exit status is 1 if another one fails.
"""

import argparse
import importlib.util
import os
import sys
import tempfile
import time
import unittest
from pathlib import Path

os.environ.setdefault("BACKEND", "gloo")
os.environ.setdefault("WORLD_SIZE", "4")
os.environ.setdefault("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", "60")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
if "TEMP_DIR" not in os.environ:
    os.environ["TEMP_DIR"] = tempfile.mkdtemp()
    for folder in ("barrier", "test_dir", "init_dir"):
        os.mkdir(os.path.join(os.environ["TEMP_DIR"], folder))

import torch
import torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcessTestCase
from torch.testing._internal.distributed import distributed_test

import atoll.torch


class Name(str):
    """The name of atoll, which the tests take for Gloo's where they choose what to do."""

    def __eq__(self, other):
        return other in ("atoll", "gloo")

    __hash__ = str.__hash__


dist.Backend._plugins["GLOO"] = dist.Backend._plugins["ATOLL"]
distributed_test.BACKEND = Name("atoll")  # of the default group
# The processes of a test are forks of this one, so that they need not import torch again.
MultiProcessTestCase._spawn_processes = lambda test: test._start_processes(
    torch.multiprocessing.get_context("fork").Process)

KNOWN = dict(line.split(maxsplit=1) for line in
             Path(__file__).with_suffix(".txt").read_text().splitlines()
             if line.strip() and not line.startswith("#"))


class OverAtoll(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    """The tests of the wheel, as PyTorch starts them on several processes."""

    def setUp(self):
        super().setUp()
        self._spawn_processes()


def tests_of(path):
    sys.path.insert(0, str(path.parent))
    name = path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return unittest.defaultTestLoader.loadTestsFromModule(module)


def flat(suite):
    for test in suite:
        yield from flat(test) if isinstance(test, unittest.TestSuite) else [test]


def reason_of(error):
    lines = [line for line in error.strip().splitlines() if line.strip()]
    words = [line for line in lines if "Error" in line and "Caught" not in line]
    return (words or lines)[-1].strip()[:200]


def run(test):
    result = unittest.TestResult()
    begin = time.monotonic()
    test.run(result)
    seconds = time.monotonic() - begin
    if result.skipped:
        return "not applicable", result.skipped[0][1], seconds
    bad = result.errors + result.failures
    return ("failed", reason_of(bad[0][1]), seconds) if bad else ("passed", "", seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print the tests and end")
    parser.add_argument("--only", default="", help="run the tests whose names contain this")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    options = parser.parse_args()
    suites = [tests_of(path.resolve()) for path in options.files] or [
        unittest.defaultTestLoader.loadTestsFromTestCase(OverAtoll)]
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
