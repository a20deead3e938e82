#!/usr/bin/env bats
# The launcher under a live Slurm, under mpirun, and alone.
load common
bats_require_minimum_version 1.5.0

launch=$TL_BUILD/launcher/train-launch
worker=$TL_BUILD/tests/unit/boot_worker
limit=60

setup() {
  [ -x "$worker" ] || skip "$worker is not built: make check-programs"
  out=$BATS_TEST_TMPDIR/out
}

teardown() {
  # Whatever a failed test left.
  local pid
  for pid in $(processes "$worker"); do kill -9 "$pid" 2> /dev/null || true; done
}

# Processes that run this very program: those of other clusters and users do not.
processes() {
  local exe
  for exe in /proc/[0-9]*/exe; do
    [ ! "$exe" -ef "$1" ] || { exe=${exe%/exe}; echo "${exe#/proc/}"; }
  done
}

parent() { sed -n 's/^PPid:\t//p' "/proc/$1/status"; }

# The workers are those whose parent runs the same program.
workers() {
  local pid all
  all=$(processes "$worker")
  for pid in $all; do
    ! grep -qx "$(parent "$pid")" <<< "$all" || echo "$pid"
  done
}

supervisors() { processes "$worker" | grep -vxF "$(workers)"; }

of_rank() {
  local pid
  for pid; do
    ! tr '\0' '\n' < "/proc/$pid/environ" | grep -qx "SLURM_PROCID=$rank" || echo "$pid"
  done
}

all_ready() { [ "$(grep -c '^ready$' "$out")" = "$1" ]; }

running_job() { squeue --noheader --states=RUNNING --format=%A; }

none_left() { [ -z "$(processes "$worker")" ]; }

# Starts ranks on two nodes, two each, in the background and waits until their workers say ready.
start() {
  need_nodes 2
  srun --mpi=pmix -N2 -n4 "$worker" "$@" > "$out" 2>&1 3>&- &
  step=$!
  wait_for $limit all_ready 4 || { cat "$out"; return 1; }
}

# The exit code of the step that start() began, which must end by itself.
ended() { ! kill -0 "$step" 2> /dev/null; }
finish() {
  wait_for $limit ended || { cat "$out"; return 1; }
  code=0
  wait "$step" || code=$?
  cat "$out"
}

@test "exec gives every rank its place" {
  need_nodes 2
  run srun --mpi=pmix -N2 -n4 "$launch" exec -- sh -c \
    'echo "place $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $SLURM_PROCID at $MASTER_ADDR:$MASTER_PORT"'
  echo "$output"
  [ "$status" = 0 ]
  for place in '0 4 0 2 0' '1 4 1 2 1' '2 4 0 2 2' '3 4 1 2 3'; do
    [ "$(grep -c "^place $place at [0-9.]*:[1-9][0-9]*\$" <<< "$output")" = 1 ]
  done
  [ "$(grep -o ' at .*' <<< "$output" | sort -u | wc -l)" = 1 ]
}

@test "ranks count by node and local rank where Slurm deals them out in turn" {
  need_nodes 2
  run srun --mpi=pmix -N2 -n4 -m cyclic "$launch" exec -- sh -c \
    'echo "place $RANK $SLURM_PROCID $LOCAL_RANK"'
  echo "$output"
  [ "$status" = 0 ]
  for place in '0 0 0' '1 2 1' '2 1 0' '3 3 1'; do
    grep -qx "place $place" <<< "$output"
  done
}

@test "a command sees nothing of PMIx, and no secret" {
  run srun --mpi=pmix -n2 "$launch" exec -- sh -c 'env | grep -E "^(PMI|TRAIN_LAUNCH)" || echo none'
  echo "$output"
  [ "$status" = 0 ]
  [ "$(grep -cx none <<< "$output")" = 2 ]
}

@test "an engine worker is told one descriptor and how long to spin, and nothing else" {
  start wait
  for pid in $(workers); do
    above=$(parent "$pid")
    cmp "/proc/$pid/cmdline" "/proc/$above/cmdline"
    more=$(comm -13 <(tr '\0' '\n' < "/proc/$above/environ" | sort) \
      <(tr '\0' '\n' < "/proc/$pid/environ" | sort))
    echo "$more"
    [[ $more =~ ^GOMP_SPINCOUNT=[0-9]+$'\n'TRAIN_LAUNCH_CONTROL=[0-9]+$ ]]
    ! tr '\0' '\n' < "/proc/$pid/environ" | grep -q '^PMI'
    # PMIx's connection must end with the supervisor, so no worker may hold it.
    ! ls -l "/proc/$pid/fd" | grep -qE 'pmix|eventpoll'
  done
  scancel "$(running_job)"
  finish
  wait_for $limit none_left
}

@test "the channel works between two nodes, and within each" {
  need_nodes 2
  run srun --mpi=pmix -N2 -n4 "$worker" channel
  echo "$output"
  [ "$status" = 0 ]
  for r in 0 1 2 3; do
    grep -q "^rank $r of 4, $((r % 2)) of 2 on n$((r / 2 + 1)): channel ok, 2 sockets\$" <<< "$output"
  done
  run srun --mpi=pmix -N2 -n3 "$worker" channel
  echo "$output"
  [ "$status" = 0 ]
  [ "$(grep -c 'channel ok' <<< "$output")" = 3 ]
}

@test "who waits is told for whom, and where that rank is" {
  need_nodes 2
  run srun --mpi=pmix -N2 -n4 "$worker" late 3
  echo "$output"
  [ "$status" = 0 ]
  [ "$(grep -c "'loss': waited .* for rank 3 (n2, at step 7, backward)" <<< "$output")" = 3 ]
}

@test "the first failure is said once, and its exit code is srun's" {
  run srun --mpi=pmix -n2 "$launch" exec -- sh -c '[ $RANK = 1 ] && exit 9; exec sleep 1000'
  echo "$output"
  [ "$status" = 9 ]
  [ "$(grep -c 'the worker exited with code 9' <<< "$output")" = 1 ]
  grep -q 'train-launch: rank 1 ([^)]*): ' <<< "$output"
}

@test "a failure counts before what the worker leaves behind has ended" {
  dir=$(scratch)
  # A chain of sessions: each dies only after the one above it, so that killing all takes a while.
  printf '[ "$1" != 0 ] || { : > "$2"; exec sleep 1000; }\nsetsid sh "$0" $(($1 - 1)) "$2"\n' \
    > "$dir/chain"
  run srun --mpi=pmix -n2 "$launch" exec -- sh -c '
    [ $RANK = 0 ] || setsid sh "$0/chain" 300 "$0/deep" &
    until [ -e "$0/deep" ]; do sleep 0.1; done
    [ $RANK = 0 ] || exit 7
    sleep 0.5
    exit 1' "$dir"
  echo "$output"
  [ "$status" = 7 ]
}

@test "a code that says 'run me again' is kept when all ranks leave so" {
  run srun --mpi=pmix -n2 "$launch" exec -- sh -c 'exit 75'
  echo "$output"
  [ "$status" = 75 ]
  ! grep -q train-launch: <<< "$output"
}

@test "kill -9 of one worker ends the job step with 137 and leaves no process" {
  start wait
  rank=3 && victim=$(of_rank $(workers))
  kill -9 "$victim"
  finish
  [ "$code" = 137 ]
  [ "$(grep -c '^train-launch: rank 3 (n2): the worker was killed by signal 9 (Killed) at step 12, forward' "$out")" = 1 ]
  wait_for $limit none_left
}

@test "kill -9 of a supervisor ends the job step and leaves no process" {
  for rank in 0 3; do
    start wait
    victim=$(of_rank $(supervisors))
    kill -9 "$victim"
    finish
    [ "$code" != 0 ]
    wait_for $limit none_left
  done
}

@test "a node whose cable is pulled ends the others' work" {
  start wait
  lab cut n2
  # The hub misses rank 2 and 3 after ten seconds, and they miss the hub.
  wait_for $limit none_left || { lab restore n2; cat "$out"; return 1; }
  lab restore n2
  finish
  [ "$code" != 0 ]
  grep -q 'rank [23] (n2): its supervisor has given no sign of life for 10 s' "$out"
  wait_for $limit node_idle n2
}

node_idle() { [ "$(lab_value "$1.state")" = idle ]; }

@test "what a command leaves running is gone with it" {
  said=$(scratch)/said
  # In a session of its own, and a supervisor at that.
  run srun --mpi=pmix -n1 "$launch" exec -- sh -c "setsid $worker wait > '$said' &
    for i in \$(seq 300); do grep -qs ready '$said' && exit 0; sleep 0.1; done; exit 1"
  echo "$output"
  [ "$status" = 0 ]
  none_left
}

@test "SIGTERM is handed on, and the worker's own code counts" {
  start obey
  scancel --signal=TERM "$(running_job)"
  finish
  [ "$code" = 75 ]
  start wait
  scancel --signal=TERM "$(running_job)"
  finish
  [ "$code" = 143 ]
  grep -q 'stopped by signal 15' "$out" || grep -q 'killed by signal 15' "$out"
  wait_for $limit none_left
}

@test "without PMIx one line says how to start it" {
  run srun --mpi=none -n2 "$launch" exec -- true
  echo "$output"
  [ "$status" = 2 ]
  [ "$(grep -c 'use: srun --mpi=pmix -n2 train-launch' <<< "$output")" = 1 ]
}

@test "a forgotten srun is noticed, in a batch script and in salloc" {
  run lab run salloc -n2 "$launch" exec -- true
  echo "$output"
  [ "$status" = 2 ]
  grep -q 'use: srun --mpi=pmix -n2 train-launch' <<< "$output"
  dir=$(scratch)
  job=$(sbatch --parsable -n2 --output="$dir/out" --wrap "$launch exec -- true; echo code=\$?" )
  wait_for $limit job_ended "$job"
  cat "$dir/out"
  grep -q 'use: srun --mpi=pmix -n2 train-launch' "$dir/out"
  grep -qx 'code=2' "$dir/out"
}

@test "a batch script of one task needs no srun" {
  dir=$(scratch)
  job=$(sbatch --parsable -n1 --output="$dir/out" --wrap "$worker channel")
  wait_for $limit job_ended "$job"
  cat "$dir/out"
  grep -q 'rank 0 of 1' "$dir/out"
}

@test "wrong usage and a wrong configuration are one line for the whole job step" {
  dir=$(scratch)
  printf '[model]\nlayers = 2\nwidth = wide\n' > "$dir/run.conf"
  run srun --mpi=pmix -n2 "$launch" train "$dir/run.conf"
  echo "$output"
  [ "$status" = 2 ]
  [ "$(grep -c "^train-launch: $dir/run.conf:3: model.width must be" <<< "$output")" = 1 ]
  printf 'run-dri = x\n' > "$dir/run.conf"
  run srun --mpi=pmix -n2 "$launch" train "$dir/run.conf"
  echo "$output"
  [ "$status" = 2 ]
  [ "$(grep -c "run.conf:1: no option run-dri; did you mean run-dir?" <<< "$output")" = 1 ]
}

@test "it runs under mpirun" {
  need_program mpirun
  run mpirun --allow-run-as-root --oversubscribe -n 3 "$worker" channel
  echo "$output"
  [ "$status" = 0 ]
  [ "$(grep -c 'channel ok, 3 sockets' <<< "$output")" = 3 ]
  run mpirun --allow-run-as-root --oversubscribe -n 3 "$launch" exec -- \
    sh -c '[ $RANK = 1 ] && exit 9; exec sleep 1000'
  echo "$output"
  [ "$status" = 9 ]
  none_left
}

@test "it runs alone" {
  run "$worker" channel
  echo "$output"
  [ "$status" = 0 ]
  [[ $output == "rank 0 of 1, 0 of 1 on "*": channel ok, 0 sockets" ]]
  run "$launch" exec -- sh -c 'echo $RANK $WORLD_SIZE; kill -SEGV $$'
  echo "$output"
  [ "$status" = 139 ]
  grep -qx '0 1' <<< "$output"
  # Ignored signals are inherited; this one would hide the worker's end.
  run timeout 20 sh -c 'trap "" CHLD; exec "$0" exec -- sh -c "exit 3"' "$launch"
  [ "$status" = 3 ]
  run sh -c 'ulimit -Sn 100; exec "$0" exec -- sh -c "ulimit -Sn"' "$launch"
  [ "$output" = 100 ]
  run -126 "$launch" exec -- "$BATS_TEST_TMPDIR"
  run -127 "$launch" exec -- "$BATS_TEST_TMPDIR/no such command"
}

@test "help and version go to standard output" {
  for command in '' train generate report exec; do
    run --separate-stderr "$launch" $command --help
    [ "$status" = 0 ]
    [ -z "$stderr" ]
    [[ $output == "usage: train-launch"* ]]
  done
  run "$launch" --version
  [[ ${lines[0]} =~ ^train-launch\ [0-9.]+$ ]]
  run "$launch" no-such-command
  [ "$status" = 2 ]
  [ "$output" = "train-launch: no command 'no-such-command'; see train-launch --help" ]
}
