#!/usr/bin/env bats
# The plugin against planners of all kinds: what it gives them, what it believes, and what a job step
# gets when they fail. One node of its own, two GPUs; `fake` puts a script in the planner's place.

load common
bats_require_minimum_version 1.5.0

setup_file() {
  own_lab --nodes 1 --cpus 2 --sockets 2 --gpus 2 --no-plugin --plugstack \
    "optional $TL_BUILD/spank/.libs/gpu_bind.so planner=$TL_BUILD/lab-own/planner config=$TL_BUILD/lab-own/bind.conf"
}

teardown_file() {
  own_lab_down
  rm -f "$TL_BUILD"/lab-own/{planner,bind.conf,answer}
}

setup() {
  planner=$TL_LAB/planner
  conf=$TL_LAB/bind.conf
  started=$TL_LAB/scratch/started
  rm -f "$started" "$planner"
  site "timeout-ms=5000"
}

site() {
  printf '%s\n' "$@" > "$conf"
  chmod 644 "$conf"
}

# A planner that first notes that it was started.
fake() {
  rm -f "$planner"
  { echo '#!/bin/sh'; echo "echo started >> $started"; cat; } > "$planner"
  chmod 711 "$planner"
  # A script must be readable; the real planner is a program and need not be.
  chmod a+r "$planner"
}

# Answers in order: line by line what follows for each of two ranks.
fake_plan() {
  local rank lines
  { echo "gpu-bind-wire 1"; echo "digest beef"; for rank; do printf '%b\n' "$rank"; done; echo end; } > "$TL_LAB/answer"
  echo "exec cat $TL_LAB/answer" | fake
}

gpus() { srun -n2 --gpus-per-node=2 "$@"; }
asked() { gpus --gpu-bind-policy=auto "$@"; }

see='echo "$SLURM_LOCALID $(sed -n "s/^Cpus_allowed_list:\t//p" /proc/self/status) ${GPU_BIND_PLAN:-none}"'
as_slurm_left_them="0 0 none
1 1 none"

# The step runs unbound with one line that has REASON; under strict it does not run, and says the same.
check_failure() {
  local reason=$1
  run --separate-stderr asked sh -c "$see"
  [ "$status" = 0 ]
  [ "$(sort <<< "$output")" = "$as_slurm_left_them" ]
  [ "$(wc -l <<< "$stderr")" = 1 ]
  [[ $stderr == "gpu-bind: n1: ranks stay as Slurm started them: "*"$reason"* ]]
  run --separate-stderr asked --gpu-bind-strict=yes echo ran
  [ "$status" = 1 ]
  [ -z "$output" ]
  [ "$(grep -c '^gpu-bind:' <<< "$stderr")" = 1 ]
  [[ $stderr == *"gpu-bind: n1: job step stopped: "*"$reason"* ]]
}

@test "the planner is not even started unless something asks" {
  fake_plan "rank 0" "rank 1"
  gpus true
  srun -n1 --gpu-bind-policy=auto true
  gpus --gpu-bind-policy=off --gpu-bind-report=summary true
  GPU_BIND_POLICY=off gpus true
  sbatch -W -o /dev/null -n1 --gpus-per-node=2 --gpu-bind-policy=auto --wrap true
  site bind=always
  GPU_BIND_POLICY=off gpus true
  [ ! -e "$started" ]
  gpus true
  [ "$(cat "$started")" = started ]
  site bind=on-request
  asked true
  GPU_BIND_REPORT=none gpus true
  [ "$(wc -l < "$started")" = 3 ]
}

@test "bind=off starts nothing and says so once, even under strict" {
  fake_plan "rank 0" "rank 1"
  site bind=off strict=yes
  run --separate-stderr asked sh -c "$see"
  [ "$status" = 0 ]
  [ "$(sort <<< "$output")" = "$as_slurm_left_them" ]
  [ "$stderr" = "gpu-bind: switched off on this cluster (bind=off in $conf)" ]
  run gpus true
  [ -z "$output" ]
  [ ! -e "$started" ]
}

@test "the planner gets the allocation, the options and nothing else" {
  echo 'echo gpu-bind-wire 1; echo digest 0
for a; do echo "say arg $a"; done; env | sed "s/^/say env /"; ls /proc/self/fd | sed "s/^/say fd /"
echo "say cwd $(pwd)"; echo rank 0; echo rank 1; echo end' | fake
  LD_PRELOAD_THIS=x GPU_BIND_MEM=bind run --separate-stderr asked --gpu-bind-nic=list:mlx5_0 true
  [ "$status" = 0 ]
  # What ls inherits; its folder is open as 3. dash sets PWD.
  expected="arg plan
arg --format=wire
arg --config=$conf
arg --ranks=2
arg --node=n1
arg --nodelist=n1
arg --cores=0-1
arg --gpus=0,1
arg --devices=0,1
arg --policy=auto
arg --mem=bind
arg --nic=list:mlx5_0
cwd /
env HOME=/
env LC_ALL=C
env PATH=/usr/bin:/bin
env PWD=/
fd 0
fd 1
fd 2
fd 3"
  diff <(sort <<< "$expected") <(sort <<< "$stderr")
}

@test "the planner is the user, for good" {
  need_nobody
  echo 'echo gpu-bind-wire 1; echo digest 0
grep -E "^(Uid|Gid|Groups|NoNewPrivs|CapInh|CapPrm|CapEff):" /proc/self/status | tr "\t" " " | sed "s/^/say /"
echo rank 0; echo end' | sed 1i: | fake
  sed -i "/started/d" "$planner"
  run --separate-stderr as_nobody srun -n1 --gpus-per-node=1 -D / --gpu-bind-policy=auto id -G
  [ "$status" = 0 ]
  [ "$output" = 65534 ]
  grep -x 'Uid: 65534 65534 65534 65534' <<< "$stderr"
  grep -x 'Gid: 65534 65534 65534 65534' <<< "$stderr"
  grep -x 'Groups: 65534 ' <<< "$stderr"
  grep -x 'NoNewPrivs: 1' <<< "$stderr"
  [ "$(grep -cE '^Cap(Inh|Prm|Eff): 0000000000000000$' <<< "$stderr")" = 3 ]
}

@test "the plan is applied to each rank, in place of Slurm's own binding" {
  fake_plan "say for the node" "warn and a warning" \
    "rank 0\ncpus 1\nenv set CUDA_VISIBLE_DEVICES=1,0\nenv keep NCCL_IB_HCA==mlx5_1:1\nsay of rank 0" \
    "rank 1\ncpus 0\nmems preferred 0"
  run --separate-stderr asked sh -c "$see; [ \$SLURM_LOCALID = 1 ] || env | grep -E '^(GPU_BIND_SET|CUDA_VIS|NCCL)'"
  [ "$status" = 0 ]
  [ "$(sort <<< "$output")" = "0 1 beef
1 0 beef
CUDA_VISIBLE_DEVICES=1,0
GPU_BIND_SET=CUDA_VISIBLE_DEVICES,NCCL_IB_HCA
NCCL_IB_HCA==mlx5_1:1" ]
  [ "$(sort <<< "$stderr")" = "and a warning
for the node
of rank 0" ]
  # The memory policy of rank 1, as the kernel shows it: "prefer:0", or "prefer (many):0".
  run --separate-stderr asked sh -c '[ $SLURM_LOCALID = 0 ] || head -n1 /proc/self/numa_maps'
  [[ $output =~ prefer[^=]*:0 ]]
  # An explicit --cpu-bind stands, whatever the plan says.
  [ "$(asked --cpu-bind=none sh -c "$see" 2>/dev/null | sort)" = "0 0-1 beef
1 0-1 beef" ]
}

@test "an empty plan changes nothing" {
  fake_plan
  site bind=always
  run gpus sh -c "$see"
  [ "$status" = 0 ]
  [ "$(sort <<< "$output")" = "$as_slurm_left_them" ]
}

@test "variables that we do not know are never set" {
  fake_plan "rank 0\nenv set LD_PRELOAD=/tmp/x.so\nenv set PATH=/tmp" "rank 1"
  run asked sh -c 'echo "${LD_PRELOAD:-none} ${GPU_BIND_SET:-empty}"; case $PATH in /tmp) echo steered;; esac'
  [ "$status" = 0 ]
  [ "$output" = "none empty
none empty" ]
}

@test "CPUs that the node does not have leave the mask alone, or stop the step" {
  fake_plan "rank 0\ncpus 4000" "rank 1"
  run --separate-stderr asked sh -c "$see"
  [ "$status" = 0 ]
  [ "$(sort <<< "$output")" = "0 0 beef
1 1 beef" ]
  [ "$stderr" = "gpu-bind: n1 rank 0 (local): CPUs 4000 are not among its allowed ones, 0-1; mask left as it was" ]
  run asked --gpu-bind-strict=yes true
  [ "$status" != 0 ]
  [[ $output == *"rank 0 (local): job step stopped: CPUs 4000 are not"* ]]
}

@test "a planner that is missing" { check_failure "$planner: No such file or directory"; }

@test "a planner that ends with an error" {
  echo 'echo error GPU 7 is not there; exit 1' | fake
  check_failure "GPU 7 is not there"
}

@test "a planner that crashes" {
  echo 'kill -SEGV $$' | fake
  check_failure "the planner died of signal 11"
}

@test "a planner that hangs is ended at the site's deadline" {
  echo 'exec sleep 300' | fake
  site timeout-ms=300
  check_failure "the planner did not answer within 300 ms"
  [ -z "$(pgrep -f '^sleep 300')" ]
}

@test "a planner that floods" {
  echo 'exec yes' | fake
  check_failure "the planner answered more than 256 KiB"
}

@test "a planner that talks nonsense, with control characters" {
  printf '%s\n' 'printf "error \033[31mred\007\n"; exit 1' | fake
  check_failure "?[31mred?"
  fake_plan "rank 0\ncpus 0-99999999999" "rank 1"
  check_failure "not a list of CPUs"
  fake_plan "rank 0"
  check_failure "answered for 1 ranks of 2"
}

@test "a planner that others could have changed is not run" {
  fake_plan "rank 0" "rank 1"
  chmod o+w "$planner"
  check_failure "others than root can write it"
  chmod o-w "$planner"
  chown nobody "$planner"
  check_failure "does not belong to root"
  [ ! -e "$started" ]
}

@test "a configuration that others could have changed is not believed" {
  fake_plan "rank 0" "rank 1"
  site bind=always
  chmod o+w "$conf"
  check_failure "others than root can write it"
  # Steps that did not ask are none the wiser.
  run gpus true
  [ "$status" = 0 ]
  [ -z "$output" ]
  site bind=sometimes
  check_failure "bind.conf:1: bind: use on-request, always or off"
  [ ! -e "$started" ]
}

@test "the site can make strict the default, and a user can undo it" {
  site strict=yes
  run asked true
  [ "$status" = 1 ]
  [[ $output == *"job step stopped"* ]]
  run asked --gpu-bind-strict=no echo ran
  [ "$status" = 0 ]
  [[ $output == *ran* ]]
}

@test "a wrong value that reaches the node all the same is refused there" {
  fake_plan "rank 0" "rank 1"
  # As from an srun without this check: the variable is set behind its back.
  run --separate-stderr srun -n1 --gpus-per-node=2 --export=GPU_BIND_CPU=bogus /bin/echo ran
  [ "$status" = 0 ]
  [ "$output" = ran ]
  [[ $stderr == *"ranks stay as Slurm started them: GPU_BIND_CPU=bogus: no such value; use local"* ]]
  [ ! -e "$started" ]
}

@test "after all this the node is idle, not drained" {
  idle() { [ "$(lab run sinfo -h -N -o %T)" = idle ]; }
  wait_for 20 idle
}
