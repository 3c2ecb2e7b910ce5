"""The base class of all faults, and the expected results that several faults share."""

import re

from trial import Wrong

MOMENTS = ["opening", "gather", "reduce", "save", "end"]


class Fault:
    """The base class of all faults. As a fault of its own, it changes nothing."""

    name = "none"
    want = "right result"
    moments = MOMENTS
    hosts = (1, 2, 3)
    needs_namespaces = False
    needs_launcher = False
    delayed = False  # true if a second thread of the victim makes the fault, a random time later
    environment = {}
    limit = 60  # seconds after which a job counts as hung
    attempts = 2  # number of times that a trial runs, until its fault could be made
    compared_with = ""  # the fault whose times are printed beside those of this fault

    @property
    def planted(self):
        """The argument FAULT of the program fault_job."""
        return self.name

    def skipped(self):
        """Returns why this machine cannot run the fault; "" if it can."""
        return ""

    def victim_environment(self, _trial):
        return {}

    def prepare(self, trial):
        """Called before the ranks start."""

    def disturb(self, trial):
        """Called when the victim waits at the moment. Makes the fault."""

    def ends_last(self, _trial):
        """Returns true if the victim ends only when the script kills it."""
        return False

    def may_leave_partial(self, _trial):
        return False

    def may_come_late(self, trial):
        """Returns true if the job may succeed before the fault happens."""
        return self.name == "none" or (self.delayed and trial.moment == "end")

    def check(self, trial):
        right(trial)

    def excuse(self, _trial):
        """Called after the fault could not be made in any attempt of a trial. Returns why this
        machine cannot make the fault; "" if it can."""
        return ""


# --- expected results ---


def within(trial):
    """Returns the seconds within which the other ranks must end. If the victim has not joined yet,
    they notice only at the rendezvous timeout that it is absent."""
    rendezvous = int(trial.fault.environment["ATOLL_RENDEZVOUS_TIMEOUT"])
    return rendezvous + 2 if trial.moment == "opening" else 2


def right(trial):
    """Checks that every rank has the right result, and that the checkpoint is that of step 3."""
    for rank in trial.ranks:
        if rank.status != 0 or rank.lines != [f"rank {rank.number}: right"]:
            raise Wrong(f"rank {rank.number} ended with {rank.status}")
    if trial.checkpoint_step() != 3:
        raise Wrong("no checkpoint of step 3")


def whole_checkpoint(trial):
    """Checks that the checkpoint is the old one or the new one."""
    step = trial.checkpoint_step()
    least = {"opening": 0, "gather": 1, "reduce": 1, "save": 1, "end": 3}[trial.moment]
    if step < least:
        raise Wrong(f"the checkpoint of step {least} is lost")


def reason(rank):
    """Returns the text of a rank without its own number and without times, which contain numbers
    too."""
    return re.sub(r"\b\d+(\.\d+)? m?s\b", "a time", rank.output.split(": ", 1)[-1])


def failed_with_line(rank, pattern):
    """Checks that the rank failed with one line, and that the line matches the pattern."""
    lines = rank.lines
    if rank.status != 1 or len(lines) != 1 or not lines[0].startswith(f"rank {rank.number}: "):
        raise Wrong(f"rank {rank.number} ended with {rank.status} and {len(lines)} lines")
    if "WRONG" in lines[0] or not re.search(pattern, reason(rank)):
        raise Wrong(f"rank {rank.number} does not say {pattern}")


def succeeded(rank):
    return rank.status == 0 and rank.lines == [f"rank {rank.number}: right"]


def others_name(trial, within):
    """Checks that every other rank ends within `within` seconds with a line that names the victim
    and no other rank as lost.

    Some ranks may succeed instead, because they no longer need the victim: any rank at the moment
    `end`, and all of them at the moment `save`, where the fault comes up to 20 ms late. A rank that
    joins after rank 0 has ended can only report that it cannot reach the store."""
    victim = trial.victim.number
    others = [rank for rank in trial.ranks if rank is not trial.victim]
    all_right = trial.moment == "save" and all(succeeded(rank) for rank in others)
    pattern = rf"\brank {victim}\b|^timeout: .*\b{victim}\b"
    if trial.moment == "opening" and victim == 0:
        pattern += "|cannot reach the store of the job"
    for rank in others:
        if all_right or (trial.moment == "end" and succeeded(rank)):
            continue
        failed_with_line(rank, pattern)
        lost = re.findall(r"rank (\d+) \([^)]*\) was lost|lost rank (\d+)", rank.output)
        blamed = {int(number) for pair in lost for number in pair if number}
        if blamed - {victim}:
            raise Wrong(f"rank {rank.number} blames {blamed}")
        if rank.ended - trial.fault_at > within:
            late = rank.ended - trial.fault_at
            raise Wrong(f"rank {rank.number} ended only after {late:.1f} s")
    whole_checkpoint(trial)
    if all_right and trial.checkpoint_step() != 3:
        raise Wrong("no checkpoint of step 3")


def all_fail(trial, pattern):
    """Checks that the job has the right result, or that every rank fails with one line and at least
    one line has the reason."""
    if all(succeeded(rank) for rank in trial.ranks):
        return right(trial)
    for rank in trial.ranks:
        if not (trial.moment == "end" and succeeded(rank)):
            failed_with_line(rank, "")
    if not any(re.search(pattern, reason(rank)) for rank in trial.ranks):
        raise Wrong(f"no rank says {pattern}")
    whole_checkpoint(trial)
