#!/usr/bin/env bats
# quickstart's promises about how it ends. Its build step finds nothing to do here: tests/run was
# started with that build.

load common

setup() {
  [ "$TL_BUILD" = "$TL_SOURCE/build" ] || skip "quickstart builds in build/, these tests use $TL_BUILD"
  OWN=$TL_BUILD/lab-quickstart
  [ "$(TL_LAB=$OWN lab_value state)" = down ] || skip "a cluster of quickstart's is running"
}

# Its cluster is gone: no namespace, no process that has its configuration, no state.
nothing_left() {
  local id
  id=$(TL_LAB=$OWN lab_value id)
  [ "$(TL_LAB=$OWN lab_value state)" = down ]
  ! ip netns list | grep -q "^$id-" || return 1
  ! grep -lsxzF "SLURM_CONF=$OWN/etc/slurm.conf" /proc/[0-9]*/environ || return 1
}

started() { [ -e "$OWN/etc/slurm.conf" ] && pgrep -f "$1" > /dev/null; }

quick() { "$TL_SOURCE/quickstart" --no-install "$@" < /dev/null; }

@test "lab runs a command, hands on its exit status and leaves nothing" {
  run quick lab srun -n1 sh -c 'echo on $SLURM_CLUSTER_NAME; exit 7'
  echo "$output"
  [ "$status" = 7 ]
  [[ $output == *"on $(TL_LAB=$OWN lab_value id)"* ]]
  nothing_left
}

@test "a signal ends it at once, with nothing left" {
  for signal in INT TERM; do
    # A terminal's Ctrl-C reaches a foreground process: bats would have INT ignored.
    setsid env --default-signal=INT "$TL_SOURCE/quickstart" --no-install lab srun sleep 4141 \
      < /dev/null > "$BATS_TEST_TMPDIR/out" 2>&1 3>&- &
    pid=$!
    wait_for 120 started 'sleep 4141'
    kill -$signal $pid
    began=$SECONDS
    status=0
    wait $pid || status=$?
    cat "$BATS_TEST_TMPDIR/out"
    [ $((SECONDS - began)) -lt 30 ]
    [ $status = $((128 + $(kill -l $signal))) ]
    nothing_left
  done
}

@test "wrong usage is told apart, before anything is started" {
  for words in "" "fly" "train --data /no/such/file" "--no-such-option lab"; do
    # shellcheck disable=SC2086
    run quick $words
    [ "$status" = 2 ]
  done
  run quick train --data
  [ "$status" = 2 ]
  run quick --help
  [ "$status" = 0 ]
  [[ $output == *"./quickstart train"* ]]
}
