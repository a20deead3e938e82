#!/usr/bin/env bats
# train-launch by itself, without Slurm: what a wrong word, file or run costs. One clear line on
# standard error, the documented exit code, nothing lost.

bats_require_minimum_version 1.5.0

setup() {
  program=$TL_BUILD/launcher/train-launch
  cd "$BATS_TEST_TMPDIR" || return
  seq 1 4000 > text.txt
  printf '%s\n' '[model]' layers=1 heads=2 width=32 context=32 '[train]' steps=4 global-batch=4 \
    eval-every=0 '[checkpoint]' every=1 > small.conf
}

train() { "$program" train small.conf --data.path=text.txt "$@"; }

# refused CODE TEXT COMMAND...: exits with CODE and says TEXT in its one line on standard error.
refused() {
  local code=$1 text=$2
  shift 2
  run --separate-stderr timeout 20 "$@"
  echo "$* -> $status: $stderr"
  [ "$status" = "$code" ]
  [ "${#stderr_lines[@]}" = 1 ]
  [[ $stderr == *"$text"* ]]
  [ "$(tr -d '[:print:]\n' <<< "$stderr" | wc -c)" = 0 ]
}

@test "what is no configuration is refused by name" {
  refused 2 "/dev/zero" "$program" train /dev/zero
  refused 2 "is a directory" "$program" train .
  refused 2 "binary data" "$program" train "$program"
  refused 2 "nowhere.conf" "$program" train nowhere.conf
}

@test "a configuration may come from a pipe, and with a byte order mark" {
  (printf '\xef\xbb\xbf'; cat small.conf) > marked.conf
  run "$program" train marked.conf --data.path=text.txt --run-dir=one
  [ "$status" = 0 ]
  # Supervisor and worker both read it, and a pipe can be read once.
  run timeout 20 bash -c '"$1" train <(cat small.conf) --data.path=text.txt --run-dir=two' \
    bash "$program"
  [ "$status" = 0 ]
  [[ $output == *"1 layers, 2 heads, width 32"* ]]
}

@test "wrong values are usage errors, told once" {
  refused 2 "optim.beta1" "$program" train small.conf --optim.beta1=1
  refused 2 "train.peak-tflops" "$program" train small.conf --train.peak-tflops=1e-300
  refused 2 "model.width" "$program" train small.conf --data.path=text.txt --model.width=7
  refused 2 "data.path" "$program" train small.conf --data.path=/no/such/text
  refused 2 "trace" "$program" train small.conf --data.path=text.txt --trace=/no/such/folder/trace
  refused 2 "small.conf" "$program" generate small.conf
  refused 2 "is a directory" "$program" generate . --untrained
  refused 2 "model.width" "$program" generate small.conf --untrained --model.width=7
}

@test "a plan says what a run needs, or what it lacks, and makes nothing" {
  run "$program" train small.conf --plan --ranks=4 --nodes=2
  [ "$status" = 0 ]
  [[ $output == *"world       4 ranks on 2 nodes"* ]]
  [[ $output == *"wire        a node sends "* ]]
  refused 2 "are missing" "$program" train small.conf --plan --memory=0.001
  refused 2 "are missing" "$program" train small.conf --data.path=text.txt --memory=0.001
  refused 2 "--nodes=3" "$program" train small.conf --plan --ranks=2 --nodes=3
  [ -z "$(find . -name 'step-*')" ]
}

@test "a run directory with control characters in its name is told as one line, and works" {
  local evil=$'one\e[31m\nrun'
  train --run-dir="$evil" > said
  train --run-dir="$evil" >> said
  [ "$(tr -d '[:print:]\n' < said | wc -c)" = 0 ]
  grep -q 'one?\[31m?run is complete' said
  rm -r "$evil"/step-*4/shard-*
  train --run-dir="$evil" > said
  grep -q 'Z checkpoint of step .* cannot be used: .*one?\[31m?run/step' "$evil/run.log"
  [ "$(grep -cvE '^[0-9-]+T[0-9:]+Z ' "$evil/run.log")" = 0 ]
}

@test "a pipe in place of a run's records is refused, not waited for" {
  for name in run.log metrics.jsonl ledger-0.jsonl; do
    mkdir "$name.run" && mkfifo "$name.run/$name"
    refused 1 "$name" "$program" train small.conf --data.path=text.txt --data.ledger=yes \
      --run-dir="$name.run"
  done
}

@test "a run that diverges ends with 93 and keeps its good checkpoints" {
  train --run-dir=run > /dev/null
  [ -d run/step-000000004 ]
  run train --run-dir=run --train.steps=60 --optim.lr=1e30 --optim.warmup=0
  [ "$status" = 93 ]
  [[ $output == *"not been finite for 10 steps"* ]]
  run train --run-dir=fresh --train.steps=60 --optim.lr=1e30 --optim.warmup=0
  [ "$status" = 93 ]
  # At most the one saved before the loss showed what had happened.
  [ "$(find fresh -name 'step-*' | wc -l)" -le 2 ]
}

@test "a run outlives whoever reads its lines" {
  bash -c '"$1" train small.conf --data.path=text.txt --run-dir=run --train.steps=400 \
    --train.log-every=1 --checkpoint.every=0; echo $? > code' bash "$program" | head -n 1
  [ "$(cat code)" = 0 ]
  [ -d run/step-000000400 ]
}

@test "an empty value is one, or is refused as one" {
  train --run-dir=run --trace= > /dev/null
  "$program" generate run --tokens=1 --prompt= > /dev/null
  refused 2 "--run-dir must be a path" "$program" train small.conf --run-dir=
  refused 2 "--train.steps must be" "$program" train small.conf --train.steps=
  printf 'run-dir =\n' | cat - small.conf > empty.conf
  refused 2 "empty.conf:1: run-dir must be a path" "$program" train empty.conf --data.path=text.txt
  refused 2 "more than once" "$program" train small.conf --trace=a --trace=
}

@test "what only a plan knows is refused without one" {
  for option in --ranks=2 --nodes=2 --network=1; do
    refused 2 "${option%=*} says nothing without --plan" "$program" train small.conf "$option"
  done
  for line in plan=yes ranks=2 nodes=2 network=1; do
    (echo "$line"; cat small.conf) > planned.conf
    refused 2 "planned.conf:1: no option ${line%=*}" "$program" train planned.conf --plan
  done
  (echo tokens=5; cat small.conf) > text.conf
  refused 2 "text.conf:1: no option tokens" "$program" generate text.conf --untrained
}

@test "a system that gives too little ends a run in words" {
  [ "$(uname -m)" = x86_64 ] || skip "the limits below are those of one machine"
  ! grep -q __asan_init "$program" || skip "sanitizers need an address space without end"
  local limit code
  for limit in 70000 80000 90000 100000 110000 120000 140000; do
    rm -rf run
    code=0
    (ulimit -v "$limit"; train --run-dir=run --memory=1 --train.steps=50 > /dev/null 2> said) || code=$?
    echo "$limit -> $code: $(cat said)"
    [[ $code =~ ^(0|1|2|127)$ ]]  # 127: not even the libraries found room
    ! grep -E 'terminate called|Aborted' said || return 1
    [ "$(grep -c . said)" -le 2 ]
  done
}

@test "output that is lost is a failure, but not of a run" {
  [ -w /dev/full ] || skip "there is no /dev/full"
  train --run-dir=run > /dev/full
  for words in "generate run --tokens=5" "generate run --tokens=9000000000000000000" "report run" \
    "--help" "--version" "train --help" "train small.conf --plan"; do
    # shellcheck disable=SC2086
    ! timeout 20 "$program" $words > /dev/full 2> said || return 1
    grep -q 'standard output' said
  done
}

# ended SIGNAL CODE TEXT: a run whose first step has no end ends so after the signal.
ended() {
  local code=0
  rm -rf run
  timeout -k 2 60 "$program" train small.conf --data.path=text.txt --run-dir=run --train.threads=1 \
    --train.peak-tflops=1 --train.global-batch=20000000 --train.micro-batch=1 > out 2> said &
  local waited=$!
  until grep -q 'from the beginning' out; do sleep 0.1; done
  kill "-$1" "$(pgrep -P "$waited")"
  wait "$waited" || code=$?
  echo "$1 -> $code: $(cat said)"
  [ "$code" = "$2" ]
  [ "$(grep -c . said)" = 1 ]
  grep -q "$3" said
}

@test "a signal ends a step that has no end" {
  ended TERM 75 "stopped early at step 0 with a durable checkpoint"
  [ "$("$program" checkpoint list run | grep -c '^ *0 ')" = 1 ]
  ended INT 143 "stopped by signal 2"
}
