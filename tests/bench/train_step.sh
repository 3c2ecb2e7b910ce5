#!/bin/sh
# Forward and backward pass of the tiny model: alone with 1 and 2 threads, then as RANKS processes of
# one thread each that share the machine. Usage: train_step.sh BUILD_DIR [RANKS] [options of
# bench_train_step].
set -eu
build=${1:?usage: train_step.sh BUILD_DIR [RANKS] [options]}
ranks=${2:-4}
[ $# -ge 2 ] && shift 2 || shift 1
"$build/bin/bench_train_step" "$@"
echo
echo "$ranks processes at once, 1 thread each:"
running=
for rank in $(seq "$ranks"); do
  "$build/bin/bench_train_step" --threads 1 "$@" >"$build/train_step.$rank" &
  running="$running $!"
done
for process in $running; do wait "$process"; done
for rank in $(seq "$ranks"); do sed -n '/^f32\|^bf16/p' "$build/train_step.$rank"; done | sort
rm -f "$build"/train_step.[0-9]*
