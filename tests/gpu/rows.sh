# What the rows of tests/gpu/run do; `run` sources this file and exports its functions. Variables that
# it does not set come from `run`, which exports them too.
# shellcheck shell=bash
# shellcheck disable=SC2154  # run sets the variables

# ranks N LIMIT COMMAND...: runs a command on N ranks. If per_host is set, atoll treats each group
# of $per_host ranks as one host, and so does NCCL, unless ranks share a GPU and NCCL must therefore
# see each rank as a host of its own.
ranks() {
  local n=$1 limit=$2 hosts=real
  shift 2
  if ((n > gpus)); then hosts=$shared_gpu; elif ((${per_host:-0} > 0)); then hosts=emulated; fi
  # shellcheck disable=SC2016  # the inner shell expands the variables
  hosts=$hosts "$bin/run_ranks" -n "$n" --timeout "$limit" sh -c '
    [ -z "$per_host" ] || export ATOLL_HOST_ID=h$((ATOLL_RANK / per_host))
    case $hosts in
      separate) export NCCL_HOSTID=r$ATOLL_RANK ;;
      emulated) export NCCL_HOSTID=$ATOLL_HOST_ID ;;
      shared)
        [ -z "$with_mps" ] || export CUDA_MPS_PIPE_DIRECTORY=$work/mps CUDA_MPS_LOG_DIRECTORY=$work/mps
        export NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_MAX_CTAS=${NCCL_MAX_CTAS:-4}
        [ -z "$per_host" ] || export NCCL_HOSTID=$ATOLL_HOST_ID ;;
    esac
    exec "$@"' sh "$@"
}
# nccl_version LIBRARY: prints the version of a libnccl.so.2 as 2.30.7, or 0 if it cannot be loaded.
nccl_version() {
  local version
  version=$("$python" -c 'import ctypes, sys
version = ctypes.c_int()
ctypes.CDLL(sys.argv[1]).ncclGetVersion(ctypes.byref(version))
print(version.value)' "$1") && echo "$((version / 10000)).$((version / 100 % 100)).$((version % 100))" || echo 0
}

# with_nccl HOW_SHARED FOLDER COMMAND...: runs a command with the libnccl.so.2 of the folder.
with_nccl() {
  LD_LIBRARY_PATH=$2:$LD_LIBRARY_PATH
  local found
  found=$(nccl_version libnccl.so.2)
  [[ $2 == *-"$found" ]] || { echo "LD_LIBRARY_PATH leads to NCCL $found instead of that of $2"; return 1; }
  shared_gpu=$1 "${@:3}"
}
# Runs a command with sums in a fixed order, which the library computes instead of NCCL.
in_order() { ATOLL_DETERMINISTIC=1 "$@"; }
in_two_levels() {
  per_host=2 ATOLL_ALGORITHM=all_gather:two_level,reduce_scatter:two_level "$@"
}

# conformance RANKS: runs the conformance suite on real NCCL, with several ranks per GPU if
# necessary. If NCCL is missing, the row fails.
conformance() {
  ranks "$1" 800 "$bin/conformance_suite" nccl
  local status=$?
  ((status != 77)) || return 1
  return "$status"
}

# The benches only print tables. Their measurements do not decide whether the row passes.
kernels() { "$work/bench_gpu_kernels" --json "$out/gpu_kernels.json" | tee "$out/gpu_kernels.table"; }
# beside NAME OPTION...: runs gpu_vs_pytorch with these options into NAME.json and NAME.table. Only the
# trainer uses the libraries that were found above, because PyTorch brings its own libraries.
beside() {
  local name=$1
  shift
  # shellcheck disable=SC2016  # the generated script expands "$@"
  printf '#!/bin/sh\nLD_LIBRARY_PATH=%s exec %s "$@"\n' "'$LD_LIBRARY_PATH'" "$work/atoll-train" >"$work/trainer"
  chmod +x "$work/trainer"
  LD_LIBRARY_PATH=$callers_libraries "$python" "$bench/gpu_vs_pytorch" --train "$work/trainer" --json "$out/$name.json" "$@" |
    tee "$out/$name.table"
}
# Succeeds if there is no PyTorch, and prints why.
no_pytorch() {
  local why
  ! why=$(LD_LIBRARY_PATH=$callers_libraries "$python" -c 'import torch, transformers' 2>&1) || return 1
  echo "without PyTorch: ${why##*$'\n'}"
}

# beside_pytorch SEQ RECOMPUTE: compares the trainer with PyTorch.
beside_pytorch() {
  local options=() why
  if why=$(no_pytorch); then
    echo "note: $why"
    options+=(--impl atoll atoll_fp8)
  fi
  [[ -z $budget ]] || options+=(--rounds 1)
  [[ -z $layers ]] || options+=(--layers "$layers")
  [[ -z $steps ]] || options+=(--steps "$steps")
  beside "gpu_vs_pytorch_$1_$2" --seq "$1" --recompute "$2" "${options[@]}"
}

# with_clock NAME COMMAND...: runs a command while the clock, power and temperature of the first GPU are
# written to NAME.clock.csv. Adds their means to NAME.table. A GPU that waits for its host draws less than 60 %
# of the maximum power; such samples do not count.
with_clock() {
  local name=$1 gpu=${CUDA_VISIBLE_DEVICES:-0} sampler status=0 means
  shift
  nvidia-smi -i "${gpu%%,*}" --query-gpu=timestamp,clocks.sm,power.draw,temperature.gpu --format=csv,noheader,nounits \
    -lms 500 >"$out/$name.clock.csv" 2>/dev/null &
  sampler=$!
  "$@" || status=$?
  kill "$sampler" 2>/dev/null
  wait "$sampler" 2>/dev/null
  means=$(awk -F ', *' '
    $3 > 0 { clock[++n] = $2; power[n] = $3; heat[n] = $4; if ($3 + 0 > most) most = $3 + 0 }
    END {
      for (i = 1; i <= n; ++i) if (power[i] >= 0.6 * most) {
        ++busy; c += clock[i]; p += power[i]; h += heat[i]; if (!least || clock[i] < least) least = clock[i]
      }
      if (busy) printf "%.0f MHz (least %.0f), %.0f W (most %.0f), %.0f C", c / busy, least, p / busy, most, h / busy
    }' "$out/$name.clock.csv")
  echo "note: ${means:-nvidia-smi gave no clock}"
  [[ -z $means || ! -f $out/$name.table ]] || echo "GPU while busy: $means" >>"$out/$name.table"
  return "$status"
}
# decided NAME FORM RECOMPUTE: runs one form of the comparison, with sizes that all rows share.
decided() {
  local why
  if [[ $2 == pytorch* ]] && why=$(no_pytorch); then echo "skipped: $why"; return 77; fi
  with_clock "$1" beside "$1" --seq 4096 --impl "$2" --recompute "$3" --layers "${layers:-13}" --warmup 10 --steps "${steps:-30}" --rounds 1
}

# sanitized TOOL COMMAND...: runs a command under compute-sanitizer. It checks only kernels in unnamed
# namespaces, as all of atoll's are. Kernels of libraries would take most of the time, so tests of
# cuDNN are left out too. memcheck must not report errors of the CUDA API, because some tests provoke
# such errors on purpose. racecheck of CUDA 13.0 fails in products of cuBLASLt on H200 ("failed to
# handle a hardware exception"), so it leaves out tests with products, and a slow test that starts no
# other kernels than those before it.
sanitized() {
  local tool=$1 options=(--kernel-name kns=GLOBAL__N) excluded='*cuDNN*'
  shift
  case $tool in
    memcheck) options+=(--report-api-errors no) ;;
    racecheck) excluded+=',products*,the fastest algorithm*,linear layers*,a whole pass*,*through Ops,fp8 products*,muon: steps on*,muon: a GPU*' ;;
  esac
  [[ -n $sanitizer ]] || { echo "skipped: no compute-sanitizer"; return 77; }
  "$sanitizer" --tool "$tool" "${options[@]}" --error-exitcode 1 "$@" --test-case-exclude="$excluded"
}

# train NAME RANKS FLAG...: trains for 50 steps, or $training_steps, in f32 unless the flags say otherwise, and
# writes the results to the folder NAME. With several ranks, prints how NCCL connected them.
train() {
  local name=$1 n=$2
  shift 2
  [[ " $* " == *" --dtype "* ]] || set -- --dtype f32 "$@"
  ranks "$n" 500 "$work/atoll-train" --data demo --model mistral-tiny --seq 256 --global-batch 8 \
    --steps "${training_steps:-50}" --no-checkpoint --peak-seconds 0.01 --quiet --out "$work/$name" "$@" || return
  ((n == 1)) || sed -n 's/.*"transports": *"\([^"]*\)".*/note: \1/p' "$work/$name/metrics.json"
}
# reference NAME: trains the run NAME, with which other rows compare theirs, unless the run exists
# already. Rows that run at the same time wait for each other.
reference() {
  (
    flock 9
    [[ ! -f $work/$1/metrics.json ]] || exit 0
    case $1 in
      f32_cpu) train "$1" 1 --device cpu ;;
      f32) train "$1" 1 --device cuda ;;
      bf16) train "$1" 1 --device cuda --dtype bf16 ;;
      fp8) train "$1" 1 --device cuda --dtype bf16 --fp8 ;;
    esac
  ) 9>"$work/$1.lock"
}
# trained_like REFERENCE TOLERANCE NAME RANKS FLAG...: trains, and compares the losses with those of
# the run REFERENCE.
trained_like() {
  local reference=$1 tolerance=$2
  shift 2
  reference "$reference" || return
  train "$@" || return
  alike "$reference" "$1" "$tolerance"
}
losses() { grep -o '"loss":[^,}]*' "$work/$1/steps.jsonl" | cut -d : -f 2; }
# alike RUN RUN TOLERANCE[/STEPS]: compares the means of the losses of every STEPS steps, by default of
# each step. Runs in bf16 compare the means of ten steps: rounding grows over 50 steps, so that single
# losses of bf16 and f32 differ by 5 %, on CPUs too.
alike() {
  local together=1
  [[ $3 != */* ]] || together=${3#*/}
  paste -d ' ' <(losses "$1") <(losses "$2") | awk -v most="${3%/*}" -v together="$together" '
    $1 !~ /^[0-9.e+-]+$/ || $2 !~ /^[0-9.e+-]+$/ || $1 <= 0 { print "step " NR ": losses " $1 " and " $2; exit bad = 1 }
    { first += $1; second += $2; ++n }
    n % together == 0 { d = (first - second) / first; if (d < 0) d = -d; if (d > worst) worst = d; first = second = 0 }
    END { printf "%d steps, means of %d: largest difference %.2g\n", n, together, worst; exit bad || !(n == 50 && worst < most) }'
}
trained_alike() { reference "$1" && reference "$2" && alike "$1" "$2" "$3"; }

# Trains with packed rows in bf16 by cuDNN. The row is skipped on GPUs on which cuDNN does not
# support packed rows.
packed_by_cudnn() {
  trained_like bf16 2e-2/10 packed_bf16 1 --device cuda --dtype bf16 --pad-to pack 2>&1 | tee "$work/packed_bf16.txt" || return
  local why
  why=$(grep -o -m 1 'packed rows need.*' "$work/packed_bf16.txt") && { echo "skipped: $why"; return 77; }
  [[ $cudnn == no ]] || ! grep 'own f32 kernels' "$work/packed_bf16.txt"
}

# Trains with products in fp8. The row is skipped on GPUs without them, such as an A100.
in_fp8() {
  trained_alike f32_cpu fp8 5e-2/10 2>&1 | tee "$work/fp8.txt" && return
  local why
  why=$(grep -o -m 1 'compute capability.*products in fp8 need.*' "$work/fp8.txt") && { echo "skipped: $why"; return 77; }
  return 1
}

# Predicts a training on one GPU from the times of its operations, then runs it. The error is only
# printed, because it says nothing about correctness.
planned() {
  local job=(--model mistral-small --seq 1024 --micro-batch 8 --dtype bf16) step expected
  "$work/atoll-plan" --measure "$out/machine.json" "${job[@]}" --vocab 32000 --measure-seconds 5 || return
  "$work/atoll-plan" --machine "$out/machine.json" "${job[@]}" --vocab 32000 --gpus-per-host 1 --recompute none \
    --strategy no_shard --json "$out/plan.json" || return
  ranks 1 200 "$work/atoll-train" "${job[@]}" --data synthetic --tokenizer ids:32000 --pad-to seq --global-batch 8 \
    --device cuda --strategy no_shard --recompute none --steps 20 --untimed-steps 5 --no-checkpoint --quiet \
    --out "$work/planned" || return
  step=$(grep -o '"seconds": *[0-9.e-]*' "$work/planned/steps.jsonl" | tail -n 15 | grep -o '[0-9.e-]*$' | sort -g | sed -n 8p)
  expected=$(grep -o '"step_s": *[0-9.e-]*' "$out/plan.json" | head -n 1 | grep -o '[0-9.e-]*$')
  awk -v a="$expected" -v b="$step" 'BEGIN { printf "step: %.4f s predicted, %.4f s measured (%+.1f %%)\n", a, b, 100 * (a / b - 1)
    exit !(a > 0 && b > 0) }' | tee "$out/plan.table"
}

# Checks that gathers and reductions overlap compute. The amount of overlap is only printed, because
# ranks that share one GPU also share its bandwidth.
overlap() {
  train overlap 4 --device cuda --dtype bf16 --mesh 1x4 --strategy full_shard --trace "$out/overlap.trace.json" || return
  "$python" "$here/trace_overlap" "$out/overlap.trace.json" | tee "$out/overlap.table"
}

# experiment NAME SETTING...: trains for 15 steps with each environment setting (VARIABLE=VALUE) in
# turn, twice, and prints the best tokens per second of each. It helps to choose a default, so it fails only
# if a training fails.
experiment() {
  local name=$1 setting rate
  local -A best=()
  shift
  for _ in 1 2; do
    for setting in "$@"; do
      training_steps=15 env "$setting" bash -o pipefail -c 'train "$@"' bash "$name" 4 --device cuda --dtype bf16 --mesh 1x4 \
        --strategy full_shard || return
      rate=$(grep -o '"tokens_per_s": *[0-9.e+]*' "$work/$name/metrics.json" | head -n 1 | grep -o '[0-9.e+]*$')
      best[$setting]=$(awk -v a="${best[$setting]:-0}" -v b="$rate" 'BEGIN { print (a > b) ? a : b }')
    done
  done
  for setting in "$@"; do printf '%-40s %10.0f tokens/s\n' "$setting" "${best[$setting]}"; done | tee "$out/$name.table"
}

# Programs outside the tree, compiled by nvcc against the installed package.
consumer() {
  [[ -z $prebuilt ]] || { echo "skipped: an archive has no package for other programs"; return 77; }
  ctest --test-dir "$root/build/release" -R '^consumer_cuda$' --no-tests=error --output-on-failure
}

# The backend of torch.distributed on CUDA tensors.
torch_backend() {
  local why tree=$root build=$root/build/release
  if why=$(no_pytorch); then echo "skipped: $why"; return 77; fi
  [[ -z $prebuilt ]] || tree=$work/atoll-gpu build=$work/atoll-gpu/build
  LD_LIBRARY_PATH=$callers_libraries ATOLL_TEST_PYTHON=$python ATOLL_TEST_LIMIT=580 \
    "$tree/tests/consumer/python/run" "$build" gpus
}

compared_with_pytorch() {
  local recompute
  for recompute in none full; do
    row "gpu_vs_pytorch_$1_$recompute" 1800 beside_pytorch "$1" "$recompute"
  done
}

# The rows that choose defaults. Each measures one form, so each is useful without the others.
deciding_rows() {
  local name form recompute
  [[ $quick != yes ]] || return 0
  while read -r name form recompute <&4; do
    row "decide_$name" 240 decided "decide_$name" "$form" "$recompute"
  done 4<<'ROWS'
usual atoll none
pytorch pytorch_compile none
head_2048 atoll_head_2048 none
head_8192 atoll_head_8192 none
bf16_moments atoll_bf16_moments none
fp8 atoll_fp8 none
full atoll full
pytorch_full pytorch_compile full
ROWS
}

# rows_of_nccl SUFFIX [WITH...]: runs the rows of NCCL. Their names end in SUFFIX; WITH chooses the library.
rows_of_nccl() {
  local suffix=$1 full=(4 --device cuda --mesh 1x4 --strategy full_shard)
  shift
  check "nccl_1x4_bf16$suffix" 600 "$@" trained_like bf16 2e-2/10 "1x4_bf16$suffix" "${full[@]}" --dtype bf16 --reduce-dtype bf16
  check "nccl_two_levels_ordered$suffix" 600 "$@" in_order in_two_levels trained_like f32 1e-3 "ordered$suffix" "${full[@]}"
  check "nccl_2x2_hybrid$suffix" 600 "$@" trained_like f32 1e-3 "2x2$suffix" 4 --device cuda --mesh 2x2 --strategy hybrid_shard
  check "nccl_1x4_full$suffix" 600 "$@" trained_like f32 1e-3 "1x4$suffix" "${full[@]}"
  check "nccl_two_levels$suffix" 600 "$@" in_two_levels trained_like f32 1e-3 "two_levels$suffix" "${full[@]}"
  check "conformance_nccl_1$suffix" 300 "$@" conformance 1
  check "conformance_nccl_4$suffix" 900 "$@" conformance 4
  check "conformance_two_levels$suffix" 900 "$@" in_two_levels conformance 4
}
sanitizing_rows() {
  local tool=$1 part
  [[ $quick != yes ]] || return 0
  for part in train muon device; do
    check "${tool}_$part" "$([[ $part == train ]] && echo 2400 || echo 1200)" sanitized "$tool" "$bin/test_gpu_$part"
  done
}

# The most useful rows come first, because time may run out: after the deciding rows those that check the
# kernels, then those that tests/bench/results-gpu.md lists as not run. Rows that measure time run alone
# (row), the others side by side (check), if --together allows it.
other_rows() {
  check device 300 "$bin/test_gpu_device"
  check train_arithmetic 600 "$bin/test_gpu_train"
  check train_fp8 600 in_fp8
  rows_of_nccl ''
  row launch_order 150 experiment launch_order NCCL_LAUNCH_ORDER_IMPLICIT=0 NCCL_LAUNCH_ORDER_IMPLICIT=1
  row connections 150 experiment connections CUDA_DEVICE_MAX_CONNECTIONS=8 CUDA_DEVICE_MAX_CONNECTIONS=32
  sanitizing_rows racecheck
  local version how folder
  # Rows inherit standard input, so the list is read from another descriptor.
  while read -r version how folder <&3; do
    [[ -z $version ]] || rows_of_nccl "_$version" with_nccl "$how" "$folder"
  done 3<<<"$nccl_rows"
  check consumer_cuda 600 consumer
  check torch_backend 600 torch_backend
  [[ $quick == yes ]] || row gpu_kernels 300 kernels
  row overlap 600 overlap
  row plan 400 planned
  check busbw 300 "$bin/test_gpu_busbw"
  check plan_measure 300 "$bin/test_gpu_plan"
  check muon 300 "$bin/test_gpu_muon"
  check train_run 600 env ATOLL_TEST_LONG=1 "$bin/test_gpu_train_run"
  check train_f32 600 trained_alike f32_cpu f32 1e-3
  check train_bf16 600 trained_alike f32_cpu bf16 2e-2/10
  check train_packed 300 trained_like f32 1e-3 packed 1 --device cuda --pad-to pack
  check train_packed_bf16 300 packed_by_cudnn
  sanitizing_rows memcheck
  [[ $quick == yes ]] || { compared_with_pytorch 2048; compared_with_pytorch 4096; }
}
