#!/usr/bin/env bats
# gpu-bind check and doctor in the ranks of a live job, and what train-launch says of its nodes: two
# nodes, on the second of which a port is down.

load common
bats_require_minimum_version 1.5.0

setup_file() {
  two=$TL_SOURCE/tests/lab/topologies/two-sockets.xml
  [ "$(lab_value nodes)" -ge 2 ] || return 0
  export one_port=$TL_BUILD/one-port.xml
  # Port state 1 is DOWN: of the second port, mlx5_1.
  awk '/name="mlx5_1"/ { on = 1 } on && /Port1State/ { sub(/"4"/, "\"1\""); on = 0 } 1' "$two" > "$one_port"
  own_lab --nodes 2 --cpus 2 --sockets 2 --gpus 2 --topology "n1=$two" --topology "n2=$one_port"
}

teardown_file() {
  own_lab_down
  rm -f "$TL_BUILD/one-port.xml"
}

setup() {
  [ "$(lab_value nodes)" -ge 2 ] || skip "needs 2 nodes: $(lab_value reason)"
  export TL_LAB=$TL_BUILD/lab-own
  planner=$TL_BUILD/spank/gpu-bind
}

ranks() { srun -N2 --ntasks-per-node=2 --gpus-per-node=2 "$@"; }

@test "check: every rank has what is planned, and srun does not mix its lines" {
  run --separate-stderr ranks --gpu-bind-policy=auto "$planner" check --format=json
  echo "$stderr"
  [ "$status" = 0 ]
  for line in "${lines[@]}"; do [ "${#line}" -le 1000 ]; done
  [ "$(grep -c '"matches":true' <<< "$output")" = 4 ]
  for rank in 0 1 2 3; do grep -q "^{\"version\":1,\"rank\":$rank,\"node\":\"n" <<< "$output"; done
}

@test "check: who changes a rank's CPUs is found out" {
  need_program taskset
  run --separate-stderr srun -N1 -n2 --gpus-per-node=2 --gpu-bind-policy=auto \
    sh -c "exec taskset -c \$((1 - SLURM_LOCALID)) '$planner' check"
  echo "$output$stderr"
  [ "$status" = 1 ]
  [[ $output == *"differs: cpus: planned 0, has 1"* ]]
  [[ $output == *"differs: cpus: planned 1, has 0"* ]]
}

@test "doctor: names the port that is down, and the nodes that differ" {
  ranks --gpu-bind-policy=auto "$planner" check --format=json 2> /dev/null > "$BATS_TEST_TMPDIR/facts"
  run "$planner" doctor - < "$BATS_TEST_TMPDIR/facts"
  echo "$output"
  [ "$status" = 1 ]
  [[ $output == *"error: n2: a port beside a GPU is down (mlx5_1:1 beside GPU 0000:83:00.0) [nic-down]"* ]]
  [[ $output == *"nodes use different ports"*"n2: 1 x infiniband 400 Gb/s; n1: 2 x infiniband 400 Gb/s"*"[nics-differ]"* ]]
  [[ $output == *"4 ranks on 2 nodes" ]]
}

@test "doctor: a job that the plugin has not touched" {
  ranks --label --gpus-per-task=1 "$planner" check --format=json --config "$TL_LAB/etc/gpu-bind.conf" \
    2> /dev/null > "$BATS_TEST_TMPDIR/facts"
  run "$planner" doctor - < "$BATS_TEST_TMPDIR/facts"
  echo "$output"
  [[ $output == *"error: n1, n2 ranks 0-3: Slurm gives each task its own GPUs only"*"[gpus-per-task]"* ]]
}

@test "doctor as a report: once for each node, with what the user set" {
  NCCL_IB_HCA=mlx5_7 GLOO_SOCKET_IFNAME='=eth0' run ranks --gpu-bind-report=doctor true
  echo "$output"
  [ "$status" = 0 ]
  [ "$(grep -c 'NCCL_IB_HCA names mlx5_7, which this node does not have \[nic-missing; ' <<< "$output")" = 2 ]
  [ "$(grep -c 'gpu-bind: n1: error: ranks 0-1: GLOO_SOCKET_IFNAME==eth0 is in NCCL' <<< "$output")" = 1 ]
  [ "$(grep -c 'is down.*\[nic-down; ' <<< "$output")" = 1 ]
}

@test "train-launch says once that the nodes' ports differ" {
  run ranks --gpu-bind-policy=auto "$TL_BUILD/launcher/train-launch" exec -- true
  echo "$output"
  [ "$status" = 0 ]
  [ "$(grep -c 'train-launch: nodes differ in the number or kind of their fabric ports (n1 against n2)' <<< "$output")" = 1 ]
  run ranks "$TL_BUILD/launcher/train-launch" exec -- true
  [[ $output != *"differ"* ]]
}

@test "an unbound step inside a bound one is not taken for bound" {
  run srun -N1 -n1 --gpus-per-node=2 --gpu-bind-policy=auto \
    sh -c "srun --overlap -n1 --gpu-bind-policy=off sh -c 'echo plan=\$GPU_BIND_PLAN step=\$GPU_BIND_STEP'"
  echo "$output"
  [[ $output == *"plan= step="* ]]
}
