# For tests whose ranks are processes of atoll-train that are to fail: what each rank says on its own
# output, and how it ends. Sourced by bash scripts that set `failures=0`.

# A log line has a time; a progress line its step.
readonly no_answer='^([0-9-]{10} [0-9:.]{12} atoll |step [0-9])'

# Runs as a rank: says with which status the command ended, and hides it, since mpirun would end the
# other ranks before they have spoken. Nothing outlives the test. Where there is a folder for this rank,
# it is the current one.
readonly as_rank='cd "$0/rank${ATOLL_RANK:-$OMPI_COMM_WORLD_RANK}" 2>/dev/null || cd "$0"
  timeout -s KILL 40 "$@"
  echo "exit $?"'

complain() {
  printf 'FAILED: %s\n' "$*"
  failures=$((failures + 1))
}

# check_rank NAME RANK PATTERN OUTPUT: OUTPUT has lines "RANK text"; besides the log, the rank has said
# one line, which matches, and has ended with a failure.
check_rank() {
  local name=$1 rank=$2 pattern=$3 lines answer status
  lines=$(sed -n "s/^$rank //p" <<<"$4" | grep -vE "$no_answer" | grep -v '^$')
  status=$(sed -n 's/^exit //p' <<<"$lines")
  answer=$(grep -v '^exit ' <<<"$lines")
  [[ $status =~ ^[0-9]+$ && $status -ne 0 ]] || complain "$name: rank $rank: exit status '$status'"
  [[ -n $answer && $(wc -l <<<"$answer") -eq 1 ]] ||
    complain "$name: rank $rank said $(grep -c . <<<"$answer") lines: $answer"
  grep -qE -- "$pattern" <<<"$answer" || complain "$name: rank $rank does not say '$pattern': $answer"
}
