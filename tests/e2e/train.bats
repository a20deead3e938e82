#!/usr/bin/env bats
# The engine on a live cluster: what training promises whatever the number of ranks and nodes, and
# whatever is killed.

load common
bats_require_minimum_version 1.5.0

setup() {
  dir=$(scratch)
  rm -rf "${dir:?}"/* # of an earlier run on the same cluster
  conf=$dir/train.conf
  cat "$TL_SOURCE"/lib/*/*.h > "$dir/text"
  cat > "$conf" <<END
[model]
layers = 2
heads = 2
width = 32
context = 32
[data]
path = $dir/text
[train]
steps = 50
global-batch = 12
log-every = 1
eval-every = 0
deadline = 60
[optim]
lr = 3e-3
warmup = 10
[parallel]
bucket-mib = 0.02
[checkpoint]
every = 20
END
}

teardown() { scancel -u root 2> /dev/null || true; }

# A value of each record that has it: values KEY RUN
values() { sed -n "s/.*\"$1\":\\([-+.0-9e]*\\).*/\\1/p" "$dir/$2/metrics.jsonl"; }

# The tensors of a checkpoint: name, bytes and digests of each file.
files_of() { sed 's/.*"files":\(.*\),"format".*/\1/' "$dir/$1/step-$2/MANIFEST.json"; }

train() {
  local run=$1
  shift
  srun --mpi=pmix "$@" train-launch train "$conf" --run-dir="$dir/$run" "${options[@]}"
}

# Submits the example script: submit RUN [OPTION...] prints the job's number.
submit() {
  local run=$1
  shift
  sbatch --parsable --output="$dir/$run.out" "$TL_SOURCE/etc/examples/train.sbatch" "$conf" \
    --run-dir="$dir/$run" "$@"
}

two_by_two() { need_nodes 2; }

job_exit() { lab run scontrol show job "$1" | sed -n 's/.* ExitCode=\([0-9]*\):.*/\1/p'; }

has_step() { [ "$(values step "$1" 2> /dev/null | tail -n 1)" -ge "$2" ] 2> /dev/null; }

# Whether the losses of two runs agree to 1e-4 of their size, for 50 steps.
same_losses() {
  paste <(values loss "$1") <(values loss "$2") | awk -v runs="$1 $2" '
    { d = $1 - $2; if (d < 0) d = -d; if (NF != 2 || d > 1e-4 * $1) { print runs, "step", NR, $0; bad = 1 } }
    END { if (NR != 50) print runs, NR, "steps"; exit bad || NR != 50 }'
}

@test "sbatch trains on two nodes, reports and generates" {
  two_by_two
  job=$(submit run --train.steps=120 --train.eval-every=60)
  wait_for 100 job_ended "$job"
  cat "$dir/run.out"
  [ "$(job_state "$job")" = COMPLETED ]
  grep -q '^world  *4 ranks on 2 nodes, network' "$dir/run.out"
  grep -q '^step 120/120  loss .* tokens/s  mfu .*%  left 0s$' "$dir/run.out"
  grep -q '^checkpoint: step 120 durable, ' "$dir/run.out"
  # ln 256 = 5.545 is what knowing nothing costs.
  values validation_loss run | awk '
    NR == 1 { first = $1 }
    END { print first, $1; exit !(NR == 3 && first > 5.4 && first < 5.7 && $1 < 3.6) }'

  LC_ALL=C lab run train-launch report "$dir/run" > "$dir/report"
  grep -q '^after 120 steps: training loss .* nats per byte$' "$dir/report"
  [ -s "$dir/run/loss.svg" ]
  lab run train-launch generate "$dir/run" --tokens=50 --seed=3 > "$dir/once"
  lab run train-launch generate "$dir/run" --tokens=50 --seed=3 > "$dir/twice"
  cmp "$dir/once" "$dir/twice"
  [ "$(wc -c < "$dir/once")" -ge 50 ]
  run ! grep -q '[[:cntrl:]]' "$dir/once"
}

@test "1, 2, 3 and 4 ranks on 1 and 2 nodes give the same losses" {
  lab run train-launch train "$conf" --run-dir="$dir/alone"
  placements=('-N1 -n1' '-N1 -n2' '-N1 -n3 -O' '-N1 -n4 -O')
  [ "$(lab_value nodes)" -lt 2 ] || placements+=('-N2 -n2' '-N2 -n3' '-N2 -n4')
  for shard in none optimizer gradients full; do
    for placement in "${placements[@]}"; do
      options=("--parallel.shard=$shard")
      # shellcheck disable=SC2086
      train "$shard $placement" $placement
      same_losses alone "$shard $placement"
    done
  done
}

@test "kill -9 of a worker, then sbatch again: the same bits as without" {
  two_by_two
  steps=300
  options=("--train.steps=$steps")
  train whole -N2 --ntasks-per-node=2
  job=$(submit killed "${options[@]}")
  wait_for 60 has_step killed 50
  # The youngest of the four pairs of supervisor and worker is a worker.
  kill -9 "$(pgrep -n -f "train-launch train .*--run-dir=$dir/killed")"
  wait_for 60 job_ended "$job"
  cat "$dir/killed.out"
  [ "$(job_state "$job")" = FAILED ]
  [ ! -e "$dir/killed/step-$(printf %09d $steps)" ]
  ls "$dir/killed"

  job=$(submit killed "${options[@]}")
  wait_for 60 job_ended "$job"
  cat "$dir/killed.out"
  [ "$(job_state "$job")" = COMPLETED ]
  grep -q '^run .* continued from .*/step-0' "$dir/killed.out"
  [ "$(files_of killed "$(printf %09d $steps)")" = "$(files_of whole "$(printf %09d $steps)")" ]
  diff <(values step whole) <(values step killed)
  diff <(values loss whole) <(values loss killed)
}

@test "a signal stops the run at a checkpoint, from which another number of ranks goes on" {
  options=()
  train whole -N1 -n2
  job=$(sbatch --parsable -N1 -n2 --output="$dir/run.out" --wrap \
    "srun --mpi=pmix train-launch train $conf --run-dir=$dir/run --train.steps=100000")
  wait_for 60 has_step run 3
  scancel --signal=USR1 "$job"
  wait_for 60 job_ended "$job"
  cat "$dir/run.out"
  [ "$(job_exit "$job")" = 75 ]
  step=$(sed -n 's/.*stopped early at step \([0-9]*\) with a durable checkpoint.*/\1/p' \
    "$dir/run.out" | head -n 1)
  [ -e "$dir/run/step-$(printf %09d "$step")/MANIFEST.json" ]
  options=(--train.steps=$((step + 2)))
  train run -N1 -n1
  [ "$(values step run | tail -n 1)" = $((step + 2)) ]
}

@test "a checkpoint is continued from by another number of ranks and nodes" {
  two_by_two
  options=()
  train whole -N1 -n1
  train parts -N2 -n3
  rm -r "$dir/parts/step-000000050"
  train parts -N1 -n2
  same_losses whole parts
}

# Events of a trace, one a line: events FILE
events() { tr '}' '\n' < "$1" | grep '"ph"'; }

# Whether each of 20 backward passes is there, and in some a reduction began: overlaps FILE
overlaps() {
  events "$1" | awk -v file="$1" '
    function field(name) { match($0, "\"" name "\":[-.0-9e+]+"); return substr($0, RSTART + length(name) + 3, RLENGTH - length(name) - 3) + 0 }
    /"cat":"step"/ && /"name":"backward"/ { begin[n] = field("ts"); end[n++] = field("ts") + field("dur") }
    /"cat":"comm"/ && /reduce_scatter/ { comm[m++] = field("ts") }
    END {
      for (i = 0; i < n; ++i)
        for (j = 0; j < m; ++j)
          if (comm[j] > begin[i] && comm[j] < end[i]) { ++overlapped; break }
      print file ": in " overlapped + 0 " of " n " backward passes"
      exit n != 20 || !overlapped
    }'
}

@test "the trace shows reductions that begin before the backward pass ends" {
  two_by_two
  for shard in optimizer full; do
    options=(--trace="$dir/$shard.json" --model.width=64 --train.steps=20 "--parallel.shard=$shard")
    train "run $shard" -N2 --ntasks-per-node=2
    for suffix in '' .rank1 .rank2 .rank3; do overlaps "$dir/$shard.json$suffix"; done
  done
}

# Bytes that a node has sent.
sent_by() { lab exec "$1" cat /proc/net/dev | awk -F'[: ]+' '/^ *eth/ { n += $11 } END { printf "%.0f\n", n }'; }

# Bytes that node n1 sends in a step, of one rank on each of two nodes: the difference of two runs,
# so that what a run begins and ends with does not count. per_step SHARD [OPTION...]
per_step() {
  local shard=$1 steps before counts=()
  shift
  for steps in 2 12; do
    before=$(sent_by n1)
    options=("--parallel.shard=$shard" "--train.steps=$steps" "$@")
    train "$shard $* $steps" -N2 -n2 > "$dir/out" || cat "$dir/out"
    counts+=($(($(sent_by n1) - before)))
  done
  echo $(((counts[1] - counts[0]) / 10))
}

# The same by theory, for 4 bytes an element and wire bytes $2 of a gradient: tiles of 1,024, two
# micro-batches a rank, and half of what is reduced or gathered sent by each of two ranks.
theory() {
  awk -v shard="$1" -v g="$2" -v L=4 -v C=256 -v T=32 -v V=256 '
    function tiles(n) { return int((n + 1023) / 1024) }
    BEGIN {
      w = 4
      layer = 1024 * (tiles(3 * C * C) + tiles(3 * C) + tiles(C * C) + 6 * tiles(C) + 2 * tiles(4 * C * C) + tiles(4 * C))
      embedding = 1024 * (tiles(V * C) + tiles(T * C)); top = 1024 * 2 * tiles(C)
      n = L * layer + embedding + top
      norm = n / 1024 * 8
      # Up, down, up and down again: what a pass ends with is still there for the next one.
      blocks = embedding + layer * (3 + 3 + 4 * (L - 3) + 2) + top * 2
      bytes["none"] = g * n + 4 * n
      bytes["optimizer"] = g * n + w * n
      bytes["gradients"] = 2 * g * n + w * n
      bytes["full"] = 2 * g * n + w * blocks
      printf "%.0f\n", (bytes[shard] + norm) / 2
    }'
}

@test "what each form sends, by the interface's count, is within 3 % of theory" {
  two_by_two
  options=()
  big=(--model.layers=4 --model.width=256 --model.heads=4 --train.global-batch=8
    --train.micro-batch=2 --checkpoint.every=0 --parallel.bucket-mib=1)
  for shard in none optimizer gradients full; do
    for wire in 4 2; do
      [ "$wire" = 4 ] || [ "$shard" = optimizer ] || continue
      more=()
      [ "$wire" = 4 ] || more=(--precision.wire=bf16)
      counted=$(per_step "$shard" "${big[@]}" "${more[@]}")
      expected=$(theory "$shard" "$wire")
      echo "$shard, $wire bytes a gradient: $counted bytes a step, by theory $expected"
      awk -v x="$counted" -v y="$expected" 'BEGIN { exit !(x > 0.97 * y && x < 1.03 * y) }'
    done
  done
}

@test "a configuration that cannot work is one line that names the option, exit 2" {
  options=(--data.path=/nonexistent)
  run -2 --separate-stderr train run -N1 -n2
  echo "${stderr:?}"
  [[ $stderr == *"data.path: cannot open /nonexistent: No such file or directory"* ]]
  options=(--device=cuda)
  run -2 --separate-stderr train run -N1 -n1
  [[ $stderr == *"device=cuda: "* ]]
}
