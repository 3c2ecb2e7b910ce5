# Functions for tests in which atoll-train processes must fail. The functions check the output and the
# exit status of each rank. Bash scripts source this file and set `failures=0`.

# Matches log lines, which start with a time, and progress lines.
readonly no_answer='^([0-9-]{10} [0-9:.]{12} atoll |step [0-9])'

# Runs a command as a rank and prints its exit status instead of returning it, because mpirun would
# otherwise kill the other ranks before they report. The rank works in its own folder if there is one.
readonly as_rank='cd "$0/rank${ATOLL_RANK:-$OMPI_COMM_WORLD_RANK}" 2>/dev/null || cd "$0"
  timeout -s KILL 40 "$@"
  echo "exit $?"'

complain() {
  printf 'FAILED: %s\n' "$*"
  failures=$((failures + 1))
}

# check_rank NAME RANK PATTERN OUTPUT: checks that a rank failed and that, apart from the log, it
# printed exactly one line, which matches PATTERN. OUTPUT has lines "RANK text".
check_rank() {
  local name=$1 rank=$2 pattern=$3 lines answer status
  lines=$(sed -n "s/^$rank //p" <<<"$4" | grep -vE "$no_answer" | grep -v '^$')
  status=$(sed -n 's/^exit //p' <<<"$lines")
  answer=$(grep -v '^exit ' <<<"$lines")
  [[ $status =~ ^[0-9]+$ && $status -ne 0 ]] || complain "$name: rank $rank: exit status '$status'"
  [[ -n $answer && $(wc -l <<<"$answer") -eq 1 ]] ||
    complain "$name: rank $rank printed $(grep -c . <<<"$answer") lines: $answer"
  grep -qE -- "$pattern" <<<"$answer" || complain "$name: rank $rank does not print '$pattern': $answer"
}
