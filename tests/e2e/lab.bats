#!/usr/bin/env bats
# The lab itself: what it promises to the tests of everything else, and that nothing of it stays.

load common
bats_require_minimum_version 1.5.0

setup() {
  TL_LAB=$TL_BUILD/lab-own
  OTHER=$TL_BUILD/lab-own-2
  began=$(date +%s)
}

teardown() {
  lab down
  TL_LAB=$OTHER lab down
  rm -rf "$TL_LAB" "$OTHER"
}

small() { lab up --no-plugin --nodes "${1:-1}" "${@:2}"; }

# What the machine has outside of labs.
machine() {
  grep -vE '/run/netns/tl[0-9a-f]{6}-' /proc/self/mounts
  ip netns list | grep -vE '^tl[0-9a-f]{6}-' || true
  ip -o link | cut -d: -f2
}

# Processes that know this test's folder: by name, environment or mounts. Not our own line.
of_this_lab() {
  local pid
  grep -lsF "$TL_LAB" /proc/[0-9]*/{cmdline,environ,mountinfo} | cut -d/ -f3 | sort -u |
    while read -r pid; do
      [ "$(stat -c %Z "/proc/$pid" 2>/dev/null || echo 0)" -ge "$began" ] || continue
      grep -qsE '^(munged|slurm|sleep|nsenter|unshare|lab)' "/proc/$pid/comm" || continue
      tr '\0' ' ' < "/proc/$pid/cmdline"
      echo "($pid)"
    done
}

reach() { lab exec "$1" timeout 1 bash -c ": < /dev/tcp/$2/6818" 2>/dev/null; }

@test "ten times up and down leave the machine as it was" {
  before=$(machine)
  for _ in 1 2 3 4 5 6 7 8 9 10; do
    small 2 --gpus 2
    [ "$(lab_value state)" = up ]
    lab run sbatch -N "$(lab_value nodes)" --wrap 'srun sleep 60' -o /dev/null
    lab down
    [ "$(lab_value state)" = down ]
  done
  diff <(echo "$before") <(machine)
  [ -z "$(of_this_lab)" ]
  find "$TL_LAB" ! -type d ! -path "$TL_LAB/log/*" ! -name .lab > "$BATS_TEST_TMPDIR/left"
  cat "$BATS_TEST_TMPDIR/left"
  [ ! -s "$BATS_TEST_TMPDIR/left" ]
  run ! grep -q "$(lab_value id)" <(ip netns list)
}

@test "down ends what jobs left running and is safe to repeat" {
  small
  srun bash -c 'setsid sleep 4242 > /dev/null 2>&1 < /dev/null & sleep 0.3'
  [ -n "$(pgrep -f '^sleep 4242')" ]
  lab down
  [ -z "$(pgrep -f '^sleep 4242')" ]
  lab down
}

@test "down cleans up after anything was killed" {
  before=$(machine)
  small 2
  kill -9 "$(cat "$TL_LAB/slurmctld.pid")" "$(cat "$TL_LAB/munge/pid")" "$(lab_value n1.slurmd)"
  [ ! -e "$TL_LAB/nodes/n1/holder" ] || kill -9 "$(cat "$TL_LAB/nodes/n1/holder")"
  lab down
  "$TL_SOURCE/tests/lab/lab" up --no-plugin --nodes 4 3>&- &
  pid=$!
  sleep 0.2
  kill -9 $pid || true  # one node on loopback may be up already
  wait $pid || true
  lab down
  [ -z "$(of_this_lab)" ]
  # The same while the one that starts it lives.
  "$TL_SOURCE/tests/lab/lab" up --no-plugin --nodes 4 3>&- &
  sleep 0.2
  lab down
  diff <(echo "$before") <(machine)
  [ -z "$(of_this_lab)" ]
}

@test "up that cannot succeed leaves nothing and says why" {
  run small 1 --conf 'NoSuchOption=1'
  [ "$status" = 1 ]
  [[ $output == *"NoSuchOption"* ]]
  # It took its own helpers for processes of the lab, once.
  [[ $output != *"do not die"* ]]
  [ "$(lab_value state)" = down ]
  [ -z "$(of_this_lab)" ]
}

@test "wrong usage and missing rights are told apart from failures" {
  run lab up --nodes none
  [ "$status" = 2 ]
  run lab up --cpus 3 --sockets 2
  [ "$status" = 2 ]
  run lab exec n1 true
  [ "$status" = 1 ]
  need_nobody
  run setpriv --reuid=nobody --regid=nogroup --clear-groups "$TL_SOURCE/tests/lab/lab" down
  [ "$status" = 2 ]
  [[ $output == *"only root"* ]]
}

@test "up refuses a folder with other things in it" {
  mkdir -p "$TL_LAB"
  touch "$TL_LAB/mine"
  run small
  [ "$status" = 1 ]
  lab down
  [ -e "$TL_LAB/mine" ]
}

@test "two labs do not meet" {
  small
  TL_LAB=$OTHER small
  [ "$(lab run scontrol show config | sed -n 's/^ClusterName *= *//p')" != \
    "$(TL_LAB=$OTHER lab run scontrol show config | sed -n 's/^ClusterName *= *//p')" ]
  TL_LAB=$OTHER lab down
  [ "$(srun echo here)" = here ]
}

@test "nodes have their own name, /tmp and shared memory, and see the lab" {
  small 2
  need_nodes 2
  [ "$(lab exec n2 hostname)" = n2 ]
  lab exec n1 touch /tmp/only-n1 /dev/shm/only-n1
  run ! lab exec n2 test -e /tmp/only-n1
  run ! lab exec n2 test -e /dev/shm/only-n1
  [ ! -e /tmp/only-n1 ]
  lab exec n2 test -r "$TL_LAB/etc/slurm.conf"
  lab exec n2 test -x "$TL_SOURCE/tests/run"
  [ "$(srun -N2 hostname | sort | tr '\n' ' ')" = "n1 n2 " ]
}

@test "cut, restore, kill and start" {
  small 2
  need_nodes 2
  reach n1 n2
  lab cut n2
  [ "$(lab_value n2.link)" = down ]
  run ! reach n1 n2
  lab restore n2
  wait_for 10 reach n1 n2
  pid=$(lab_value n2.slurmd)
  lab kill n2
  [ -z "$(lab_value n2.slurmd)" ]
  [ ! -d "/proc/$pid" ] || grep -q '^State:.*zombie' "/proc/$pid/status"
  lab start n2
  wait_for 10 srun -w n2 true
}

@test "each node reads its own topology" {
  topologies=$TL_SOURCE/tests/lab/topologies
  small 2 --topology "$topologies/two-sockets.xml" --topology "n2=$topologies/four-gpus.xml" \
    --bind-conf bind=always
  need_nodes 2
  lab exec n1 grep -x "topology=$topologies/two-sockets.xml" "$TL_LAB/etc/gpu-bind.conf"
  lab exec n2 grep -x "topology=$topologies/four-gpus.xml" "$TL_LAB/etc/gpu-bind.conf"
  lab exec n2 grep -x "topology-check=off" "$TL_LAB/etc/gpu-bind.conf"
  lab exec n2 grep -x "bind=always" "$TL_LAB/etc/gpu-bind.conf"
}

@test "GPUs are devices of their own, and Slurm counts them" {
  small 1 --gpus 3
  [ "$(srun --gpus=3 printenv CUDA_VISIBLE_DEVICES)" = 0,1,2 ]
  [ "$(lab_value gres)" = devices ] || skip "device nodes are refused"
  [ "$(stat -c '%F %t %T' "$TL_LAB"/dev/nvidia2)" = "character special file f0 2" ]
}

@test "with --constrain steps have groups of their own, gone with the cluster" {
  small 2 --constrain
  [ "$(lab_value constrain)" != no ] || skip "cgroups that steps could be kept to are refused here"
  srun -N2 sh -c 'grep -q "cpuset:/.*/step_" /proc/self/cgroup'
  lab down
  [ -z "$(find /sys/fs/cgroup -path "*/$(lab_value id)-*" 2>/dev/null)" ]
}

@test "an ordinary user can submit" {
  need_nobody
  small 1 --gpus 1
  [ "$(as_nobody srun --gpus=1 id -un)" = nobody ]
}

@test "without the right to make namespaces and device nodes there is one node on loopback" {
  need_program capsh
  lab_without() {
    capsh --drop=cap_sys_admin,cap_net_admin,cap_mknod -- -c '"$0" "$@"' \
      "$TL_SOURCE/tests/lab/lab" "$@"
  }
  export TL_LAB
  run lab_without up --no-plugin --nodes 2 --cpus 4 --gpus 2
  [ "$status" = 0 ]
  [[ $output == *"one node on loopback"* ]]
  [ "$(lab_value mode)" = loopback ]
  [ "$(lab_value nodes)" = 1 ]
  [ -n "$(lab_value reason)" ]
  [ "$(lab_without run srun -n2 --gpus=2 hostname | wc -l)" = 2 ]
  lab_without run srun -n1 bash -c 'setsid sleep 4343 > /dev/null 2>&1 < /dev/null & sleep 0.3'
  lab_without down
  [ -z "$(pgrep -f '^sleep 4343')" ]
  [ -z "$(of_this_lab)" ]
}
