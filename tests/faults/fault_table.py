"""The table of all faults, and the faults of processes and resources: when and where each happens,
how the script makes it, and the expected result."""

import glob
import os
import signal
import time
from pathlib import Path

from fault import Fault, all_fail, failed_with_line, others_name, right, whole_checkpoint, within
from hosts import fill
from network_faults import Bad, Corrupt, Cut, Flood, FloodElsewhere, FloodKill, HalfOpen, \
    Stranger, Vanish, WrongToken
from trial import Wrong

# --- faults of a process ---


class Kill(Fault):
    name = "kill"
    delayed = True
    environment = {"ATOLL_RENDEZVOUS_TIMEOUT": "3"}
    want = ("every other rank ends within 2 s (5 s at opening) with one line, which names only the "
            "killed rank")
    signal = signal.SIGKILL

    def check(self, trial):
        if trial.victim.status != -self.signal:
            if trial.victim.status == 0 and trial.moment in ("opening", "end"):
                return right(trial)  # the rank ended before the signal came
            raise Wrong(f"the victim ended with {trial.victim.status}")
        others_name(trial, within(trial))

    def may_leave_partial(self, trial):
        return trial.victim.number == 0


class Segfault(Kill):
    name = "segfault"
    signal = signal.SIGSEGV


class Exit(Fault):
    name = "exit"
    environment = {"ATOLL_RENDEZVOUS_TIMEOUT": "3"}
    want = ("every other rank ends within 2 s (5 s at opening) with one line, which names the rank "
            "that ended")

    def check(self, trial):
        if trial.victim.status != 3 or trial.victim.lines:
            raise Wrong(f"the victim ended with {trial.victim.status}")
        others_name(trial, within(trial))

    def may_leave_partial(self, trial):
        return trial.victim.number == 0


class Exception_(Exit):
    name = "exception"
    want = ("every other rank ends within 2 s (5 s at opening) with one line, which names the rank "
            "that threw")

    def check(self, trial):
        failed_with_line(trial.victim, "planted exception")
        others_name(trial, within(trial))


class Stop(Fault):
    name = "stop"
    delayed = True
    want = "a rank that stops for 5 s, longer than the limit for a cut (2 s), changes nothing"
    environment = {"ATOLL_CUT_TIMEOUT": "2"}

    def disturb(self, trial):
        time.sleep(5)
        trial.poll()
        if trial.victim.status is None:  # at the end of the job the rank may end before it stops
            os.kill(trial.victim.pid, signal.SIGCONT)


class Hang(Fault):
    name = "hang"
    delayed = True
    want = ("other ranks end within 20 s (25 s at opening; timeout: 3 s) with one line, which "
            "names the stopped rank")
    environment = {"ATOLL_TIMEOUT": "3", "ATOLL_FILE_TIMEOUT": "3", "ATOLL_RENDEZVOUS_TIMEOUT": "3"}

    def ends_last(self, _trial):
        return True

    def check(self, trial):
        if trial.victim.status == 0:
            return right(trial)
        # The store answers a request after the timeout at the latest, and a rank waits 5 s longer
        # for the answer. While a rank joins, it grants the other ranks another 10 s.
        others_name(trial, 25 if trial.moment == "opening" else 20)

    def may_leave_partial(self, trial):
        return trial.victim.number == 0


class Parent(Fault):
    name = "parent killed"
    want = "every rank ends within 8 s with one line, which names the launcher"
    needs_launcher = True
    limit = 20

    @property
    def planted(self):
        return "parent"

    def disturb(self, trial):
        if trial.moment == "opening":
            time.sleep(0.3)  # until the other ranks have looked for their launcher
        trial.launcher.kill()
        trial.launcher.wait()

    def check(self, trial):
        for rank in trial.ranks:
            # At the moment `end`, a rank may end before it notices the launcher's end.
            if not (trial.moment == "end" and rank.lines == [f"rank {rank.number}: right"]):
                failed_with_line(rank, r"mpirun \(process \d+\)")
        if trial.seconds > 8:
            raise Wrong(f"the last rank ended after {trial.seconds:.1f} s")
        whole_checkpoint(trial)


# --- resources ---


class FullDisk(Fault):
    name = "full disk"
    want = "every rank ends with one line: `No space left` and the file; old checkpoint whole"
    moments = ["opening", "gather", "reduce", "save"]
    needs_namespaces = True

    @property
    def planted(self):
        return "disk"

    def disturb(self, trial):
        fill(trial.hosts.disk)

    def check(self, trial):
        for rank in trial.ranks:
            failed_with_line(rank, r"checkpoint.*No space left on device")
        if trial.checkpoint_step() != (0 if trial.moment == "opening" else 1):
            raise Wrong("the old checkpoint is lost")


class SlowDisk(Fault):
    name = "slow disk"
    want = "right result, although each sync of a rank takes 1.5 s and the timeout is 2 s"
    moments = ["opening", "gather", "reduce", "save"]
    environment = {"ATOLL_TIMEOUT": "2", "ATOLL_FILE_TIMEOUT": "30"}

    @property
    def planted(self):
        return "disk"

    def victim_environment(self, trial):
        return {"LD_PRELOAD": trial.programs.slow_disk, "FAULTS_SYNC_MS": "1500",
                "FAULTS_SLOW_WHEN": str(trial.folder / "go")}


class FullShm(Fault):
    name = "full shm"
    want = "right result with a full /dev/shm"
    needs_namespaces = True

    @property
    def planted(self):
        return "shm"

    def disturb(self, trial):
        for host in range(trial.hosts.count):
            fill(trial.hosts.shm(host))


class Descriptors(Fault):
    name = "few descriptors"
    want = "with 0 to 11 more descriptors: right result, or one line per rank, one with the reason"

    @property
    def planted(self):
        return "descriptors"

    def check(self, trial):
        all_fail(trial, r"descriptor|open files")


class Memory(Fault):
    name = "out of memory"
    want = "with 0 to 20 MB more memory: right result, or one line per rank, one with the reason"

    @property
    def planted(self):
        return "memory"

    def check(self, trial):
        all_fail(trial, r"memory|bad_alloc|Resource temporarily unavailable")


class Clock(Fault):
    name = "clock jump"
    want = "right result although the clock of a rank jumps by a day, forwards or back"
    library = next(iter(glob.glob("/usr/lib/*/faketime/libfaketimeMT.so.1")), None)

    def skipped(self):
        return "" if self.library else "libfaketime is not installed"

    @property
    def planted(self):
        return "clock"

    def victim_environment(self, trial):
        return {"LD_PRELOAD": self.library, "FAKETIME_NO_CACHE": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                "FAKETIME_TIMESTAMP_FILE": str(trial.folder / "clock")}

    def prepare(self, trial):
        Path(trial.folder, "clock").write_text("+0\n")

    def disturb(self, trial):
        Path(trial.folder, "clock").write_text("+1d\n" if trial.delay % 2 else "-1d\n")


FAULTS = [
    Fault(), Kill(), Stop(), Hang(), Segfault(), Exit(), Exception_(), Parent(),
    Cut(), Vanish(), Bad("loss 5 %", "loss 0.05"), Bad("delay 200 ms", "delay 200"),
    Bad("bit errors 2 %", "noise 0.02"), Corrupt(),
    Flood(), FloodElsewhere(), FloodKill(), HalfOpen(), Stranger(), WrongToken(),
    FullDisk(), SlowDisk(), FullShm(), Descriptors(), Memory(), Clock(),
]
