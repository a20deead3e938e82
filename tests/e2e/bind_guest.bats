#!/usr/bin/env bats
# Several NUMA nodes, for real: in an emulated machine (tests/lab/guest) with its own kernel, where a
# whole Slurm runs on four nodes of two CPUs. The machine is found by the planner itself, and what the
# plugin applied is what that kernel says, in cgroups of version 2.

load common
bats_require_minimum_version 1.5.0

setup_file() {
  export WHY_NOT GUEST_OUT=$BATS_FILE_TMPDIR/out
  WHY_NOT=$("$TL_SOURCE/tests/lab/guest" why-not)
  [ -z "$WHY_NOT" ] || return 0
  status=0
  "$TL_SOURCE/tests/lab/guest" run "$TL_SOURCE/tests/e2e/bind_guest.sh" > "$GUEST_OUT" 2>&1 || status=$?
  # 3: this machine's emulator does not get it to boot.
  if [ $status = 3 ]; then
    WHY_NOT=$(tail -n 1 "$GUEST_OUT")
    return 0
  fi
  [ $status = 0 ] || cat "$GUEST_OUT" >&2
  return $status
}

# Bats 1.8 takes a skip in setup_file for a failure.
setup() { [ -z "$WHY_NOT" ] || skip "$WHY_NOT"; }

# What the guest printed for the part NAME, without the plugin's warnings.
part() { sed -n "/^== $1$/,/^== /{/^== /d;/^gpu-bind: /d;p}" "$GUEST_OUT"; }

# PCI order of the GPUs, and their nodes: 3, 1, 2, 0.
@test "the planner finds each GPU on the node of its host bridge" {
  part machine
  [ "$(part machine | awk '/^GPU/ { gpus = 1; next } gpus && NF { print $1, $4, $5 }')" = "0 3 6-7
1 1 2-3
2 2 4-5
3 0 0-1" ]
}

@test "each rank runs on the cores of its GPU's node and prefers its memory" {
  part preferred
  [ "$(part preferred | grep ^n1 | sort | cut -d' ' -f1-4)" = "n1 0 cpus=6-7 mem=prefer:3
n1 1 cpus=2-3 mem=prefer:1
n1 2 cpus=4-5 mem=prefer:2
n1 3 cpus=0-1 mem=prefer:0" ]
}

@test "with --gpu-bind-mem=bind its pages come from that node" {
  part bind
  [ "$(part bind | sort | sed 's/ROCR[^ ]* //')" = "n1 0 cpus=6-7 mem=bind:3 pages=N3
n1 1 cpus=2-3 mem=bind:1 pages=N1
n1 2 cpus=4-5 mem=bind:2 pages=N2
n1 3 cpus=0-1 mem=bind:0 pages=N0" ]
}

@test "gpu-bind check finds the plan in each rank" {
  [ "$(part preferred | grep -c '^matches the plan ')" = 4 ]
}

@test "a rank whose GPUs are on two nodes keeps its CPUs and memory" {
  part two
  [ "$(part two | grep -c ' mem=default ')" = 2 ]
}

@test "--cpu-bind and --mem-bind stand" {
  part kept
  [ "$(part kept | grep -c ' cpus=0-7 mem=bind:0-3 ')" = 4 ]
}

@test "a step with one GPU is denied the others by its cgroup" {
  part lab
  [[ $(part lab) == *constrain=v2* ]]
  part devices
  [ "$(part devices)" = "0
No such device or address
Operation not permitted
Operation not permitted
Operation not permitted" ]
}
