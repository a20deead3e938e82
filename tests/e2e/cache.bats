#!/usr/bin/env bats
# The topology cache on a live node: slurmd fills it, job steps use it, and no longer when it is of
# another boot or of a machine that has changed. The planner compares the site's file with the machine,
# for which it looks into the cache; it says so in its full report only where it cannot use it.

load common
bats_require_minimum_version 1.5.0

setup_file() {
  local dir=$TL_BUILD/lab-cache
  mkdir -p "$dir"
  # Two GPUs beside all CPUs of this machine.
  {
    printf '\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\n'
    printf 'GPU%s\n' "0	 X 	NODE	$(cat /sys/devices/system/cpu/online)	0" \
      "1	NODE	 X 	$(cat /sys/devices/system/cpu/online)	0"
  } > "$dir/site.txt"
  own_lab --nodes 1 --cpus 2 --sockets 2 --gpus 2 --no-plugin \
    --bind-conf "topology=$dir/site.txt" --plugstack \
    "optional $TL_BUILD/spank/.libs/gpu_bind.so planner=$TL_BUILD/spank/gpu-bind config=$TL_BUILD/lab-own/etc/gpu-bind.conf cache=$dir/kept"
}

teardown_file() {
  own_lab_down
  rm -rf "$TL_BUILD/lab-cache"
}

setup() {
  cache=$TL_BUILD/lab-cache/kept
  kept=$cache/topology
  wait_for 20 test -s "$kept"
}

# What a step says of its plan, in full; the plan is made and applied in any case.
report() {
  run --separate-stderr srun -n2 --gpus-per-node=2 --gpu-bind-policy=auto \
    --gpu-bind-report=full printenv GPU_BIND_PLAN
  echo "$stderr"
  [ "$status" = 0 ]
  [ "$(wc -l <<< "$output")" = 2 ]
}

used() {
  report
  [[ $stderr != *cache* && $stderr == *"GPU 1"* ]]
}

not_used() {
  report
  [[ $stderr == *"cache-not-used"* && $stderr == *"$1"* && $stderr == *"GPU 1"* ]]
}

@test "slurmd fills the cache, root's alone, and steps use it" {
  [ "$(stat -c '%a %u' "$kept")" = "644 0" ]
  used
  before=$(stat -c '%i %Y' "$kept")
  used
  [ "$(stat -c '%i %Y' "$kept")" = "$before" ]
}

@test "a cache of another boot is not used until slurmd starts again" {
  sed -i '1s/ [0-9a-f]\{32\}$/ 00000000000000000000000000000000/' "$kept"
  not_used "of another boot, or the machine has changed since"
  lab kill n1
  lab start n1
  wait_for 20 sh -c "! grep -q ' 0\{32\}$' '$kept'"
  used
}

@test "a node that changes after slurmd has started looks itself, until root fills the cache anew" {
  [ "$(lab_value mode)" = network ] || skip "the node has this machine's name: $(lab_value reason)"
  lab exec n1 hostname renamed
  not_used "of another boot, or the machine has changed since"
  lab exec n1 gpu-bind cache --cache="$cache"
  used
  lab exec n1 hostname n1
  lab exec n1 gpu-bind cache --cache="$cache"
}

@test "a cache that others could have written, or that is gone, is not used" {
  chmod o+w "$kept"
  not_used "others than root can write it"
  chmod o-w "$kept"
  used
  mv "$kept" "$kept.away"
  not_used "not there"
  mv "$kept.away" "$kept"
}

@test "no user can fill it" {
  need_nobody
  run as_nobody gpu-bind cache --cache="$cache"
  [ "$status" = 1 ]
  [ "$output" = "gpu-bind: only root can write the topology cache" ]
}
