#!/usr/bin/env bats
# One training run whose jobs are killed at random moments while their number of ranks changes. With
# KILLS set, so many of them: `make check-kills` does fifty.

load common
bats_require_minimum_version 1.5.0

setup() {
  dir=$(scratch)
  rm -rf "${dir:?}"/* # of an earlier run on the same cluster
  conf=$dir/train.conf
  cat "$TL_SOURCE"/lib/*/*.h > "$dir/text"
  # A model that is large for its batch: reducing, updating and saving take their share of the time.
  # The learning rate is the same at all steps, so that the run may be as long as it takes.
  cat > "$conf" <<END
deterministic = canonical
[model]
layers = 2
heads = 2
width = 128
context = 8
[data]
path = $dir/text
ledger = yes
[train]
global-batch = 4
micro-batches = 4
threads = 1
log-every = 1
eval-every = 0
deadline = 60
[optim]
lr = 1e-3
min-lr = 1e-3
warmup = 0
[parallel]
bucket-mib = 0.2
[checkpoint]
every = 8
attempts = 0
END
  two=(-N1 -n2) four=(-N1 -n4 -O)
  [ "$(lab_value nodes)" -lt 2 ] || two=(-N2 -n2) four=(-N2 -n4)
}

teardown() { scancel -u root 2> /dev/null || true; }

# Submits the next job of a run: submit RUN STEPS SHARD PLACEMENT... prints its number.
submit() {
  local run=$1 steps=$2 shard=$3
  shift 3
  sbatch --parsable "$@" --output="$dir/$run.out" --open-mode=append --wrap \
    "srun --mpi=pmix train-launch train $conf --run-dir=$dir/$run --train.steps=$steps \
      --parallel.shard=$shard"
}

# The files of a checkpoint, with the digests of all their bytes: equal if the same ranks saved the
# same state.
files_of() { sed 's/.*"files":\(.*\),"format".*/\1/' "$dir/$1/step-$(printf %09d "$2")/MANIFEST.json"; }

durable() { sed -n 's/.* checkpoint: step \([0-9]*\) durable.*/\1/p' "$dir/$1/run.log" | tail -n 1; }
started() {
  local times
  times=$(grep -cs ' start: from step ' "$dir/killed/run.log")
  [ "${times:-0}" -ge "$1" ]
}

workers() {
  local pid
  for pid in $(pgrep -f -- "--run-dir=$dir/killed( |$)"); do
    [ "$(cat "/proc/$pid/comm" 2> /dev/null)" != train-worker ] || echo "$pid"
  done
}

# Kills a worker of the run's so-manieth job at a random moment after it has begun to train; sets
# `phase` to what it was at.
kill_at_random() {
  local number=$1 job=$2 before pids
  before=$(wc -l < "$dir/killed.out")
  wait_for 60 started "$number"
  sleep "0.$(printf %03d $((RANDOM % 700)))"
  mapfile -t pids < <(workers)
  kill -9 "${pids[RANDOM % ${#pids[@]}]}"
  wait_for 60 job_ended "$job"
  phase=$(tail -n "+$((before + 1))" "$dir/killed.out" |
    sed -n 's/^train-launch: .* the worker was killed by signal 9 (Killed)/start/p' | head -n 1)
  [ -n "$phase" ]
  phase=${phase#'start at step '*', '}
}

# How often a kill fell where it did least often: reduction, optimizer, or while a checkpoint is
# written.
rarest() {
  printf '%s\n' "${count[reduce]}" "${count[update]}" "${count[saving]}" | sort -n | head -n 1
}

# Each number of a sample once, from 0 on.
check_ledger() {
  cat "$dir/$1"/ledger-*.jsonl | sed 's/.*"first":\([0-9]*\).*/\1/' | sort -n |
    awk '$1 != NR - 1 { print "sample", NR - 1, "is missing or used twice"; exit 1 }
      END { print NR, "samples, each used once" }'
}

@test "jobs killed at random on 2, 4 and 1 ranks end with the bits of the undisturbed run" {
  kills=${KILLS:-5}
  seed=${SEED:-$RANDOM}
  RANDOM=$seed
  echo "SEED=$seed KILLS=$kills"
  declare -A count=([start]=0 [train]=0 [reduce]=0 [update]=0 [save]=0 [saving]=0)
  : > "$dir/killed.out"
  for ((i = 1; i <= kills || (kills >= 50 && i <= 4 * kills && $(rarest) < 5); ++i)); do
    case $((i % 3)) in
      1) placement=("${two[@]}") shard=optimizer ;;
      2) placement=("${four[@]}") shard=none ;;
      0) placement=(-N1 -n1) shard=none ;;
    esac
    job=$(submit killed 1000000 "$shard" "${placement[@]}")
    kill_at_random "$i" "$job"
    echo "kill $i of ${placement[*]}: in '$phase', step $(durable killed) is durable"
    count[${phase%%,*}]=$((count[${phase%%,*}] + 1))
    [[ $phase != *sav* ]] || count[saving]=$((count[saving] + 1))
  done
  steps=$(($(durable killed) + 20))
  job=$(submit killed $steps optimizer "${two[@]}")
  wait_for 60 job_ended "$job"
  tail -n 3 "$dir/killed.out"
  [ "$(job_state "$job")" = COMPLETED ]

  job=$(submit whole $steps optimizer "${two[@]}")
  wait_for 600 job_ended "$job"
  [ "$(job_state "$job")" = COMPLETED ]
  [ "$(files_of killed $steps)" = "$(files_of whole $steps)" ]
  diff <(sed -E 's/"(mfu|tokens_per_second)":[^,}]*//g' "$dir/killed/metrics.jsonl") \
    <(sed -E 's/"(mfu|tokens_per_second)":[^,}]*//g' "$dir/whole/metrics.jsonl")
  check_ledger killed
  echo "# $((i - 1)) kills, $steps steps, $SECONDS s (seed $seed): ${count[start]} at the start," \
    "${count[train]} in forward and backward, ${count[reduce]} in reduction, ${count[update]} in the" \
    "optimizer, ${count[save]} at a save; at ${count[saving]} a checkpoint was being written" >&3
  [ "$kills" -lt 50 ] || [ "$(rarest)" -ge 5 ]
}
