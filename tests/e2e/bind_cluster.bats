#!/usr/bin/env bats
# Binding on other clusters than the shared one: steps kept to their cores and GPUs by cgroups, a plugin
# that puts ranks into containers before ours and after it, the site's switch, and interactive and
# external steps. One node of its own, two GPUs.

load common
load bind_common
bats_require_minimum_version 1.5.0

setup_file() {
  own_lab --nodes 1 --cpus 2 --sockets 2 --gpus 2 --constrain --conf PrologFlags=contain \
    --conf LaunchParameters=use_interactive_step \
    --conf "InteractiveStepOptions=\"--interactive $TL_SOURCE/tests/e2e/see_rank\"" \
    --topology "$TL_SOURCE/tests/lab/topologies/two-sockets.xml"
  cp "$TL_LAB/etc/plugstack.conf" "$TL_LAB/scratch/plugstack"
}

teardown_file() { own_lab_down; }

setup() {
  ours=$(cat "$TL_LAB/scratch/plugstack")
  plan="--topology=$TL_SOURCE/tests/lab/topologies/two-sockets.xml --nodelist=n1 --ranks=2 --gpus=0,1"
}

# Lines of plugstack.conf, and of the site's configuration, from here on.
plugins() { printf '%s\n' "$@" > "$TL_LAB/etc/plugstack.conf"; }
site() {
  local file=$TL_LAB/nodes/n1/gpu-bind.conf
  [ -e "$TL_LAB/scratch/site" ] || cp "$file" "$TL_LAB/scratch/site"
  { cat "$TL_LAB/scratch/site"; [ $# = 0 ] || printf '%s\n' "$@"; } > "$file"
  [ "$(lab_value mode)" = network ] || cp "$file" "$TL_LAB/etc/gpu-bind.conf"
}

two_ranks() { srun -n2 --gpus-per-node=2 "$@"; }

need_constrain() {
  [ "$(lab_value constrain)" != no ] || skip "job steps cannot be kept to what is theirs here"
}

# What opening each GPU says: EPERM from the cgroup, ENXIO where only the driver is missing.
open_all="for i in 0 1; do head -c1 \$TL_LAB/dev/nvidia\$i; done 2>&1 | sed 's/.*: //'"

@test "in a cgroup with devices each rank gets what is planned, and all its GPUs open" {
  need_constrain
  export TL_LAB
  out=$(two_ranks --gpu-bind-policy=auto "$see" set 2> /dev/null)
  same_as "$(planned n1 {} $plan)" "$out"
  out=$(two_ranks --gpu-bind-policy=auto sh -c "$open_all" 2> /dev/null)
  [ "$(sort -u <<< "$out")" = "No such device or address" ]
}

@test "where a cgroup renumbers GPUs, the plan is for those that the step has" {
  need_constrain
  # Two steps at once; the second has GPU 1, which Slurm calls 0 there.
  out=$(lab run salloc -Q -n2 --gpus-per-node=2 sh -c '
    for i in 0 1; do srun --exact -n1 -c1 --gpus-per-node=1 --gpu-bind-policy=auto sh -c "
      echo \$SLURM_STEP_GPUS \$('"$see"'); sleep 1" & done; wait' 2> /dev/null)
  echo "$out"
  [ "$(sort <<< "$out" | sed 's/CUDA_DEVICE_ORDER=[^ ]* //')" = "0 n1 0 cpus=0 mem=prefer:0 CUDA_VISIBLE_DEVICES=0 NCCL_IB_HCA==mlx5_0:1 UCX_NET_DEVICES=mlx5_0:1
1 n1 0 cpus=1 mem=default CUDA_VISIBLE_DEVICES=0 NCCL_IB_HCA==mlx5_1:1 UCX_NET_DEVICES=mlx5_1:1" ]
}

@test "GPUs that the cgroup takes from tasks are told, with the option that gives them back" {
  need_constrain
  export TL_LAB
  run --separate-stderr srun -n2 --gpus-per-task=1 --gpu-bind-policy=auto sh -c "$open_all"
  [ "$(grep -c 'Operation not permitted' <<< "$output")" = 2 ]
  [[ $stderr == *gpu-bind-asked*"leave out --gpu-bind and --gpus-per-task"* ]]
}

@test "an interactive step is left alone" {
  out=$(lab run salloc -Q -n2 --gpus-per-node=2 --gpu-bind-policy=auto)
  echo "$out"
  [[ $out == "n1 0 cpus=0-1 mem=default CUDA_VISIBLE_DEVICES=0,1" ]]
}

@test "an external step is left alone" {
  out=$(two_ranks --gpu-bind-policy=auto sh -c '
    [ $SLURM_LOCALID = 0 ] || { sleep 2; exit; }
    scontrol listpids | awk "\$3 == \"extern\" && \$1 > 0 { print \$1 }" | while read -r pid; do
      echo "process $(sed -n "s/^Cpus_allowed_list:\t//p" /proc/$pid/status)"
      tr "\0" "\n" < /proc/$pid/environ | grep ^GPU_BIND_ || true
    done' 2> /dev/null)
  echo "$out"
  [ "$(sort -u <<< "$out")" = "process 0-1" ]
}

@test "bind=always binds who did not ask, and who asked otherwise as he asked" {
  site bind=always mem=bind
  same_as "$(planned n1 {} $plan --mem=bind)" "$(two_ranks "$see" set 2> /dev/null)"
  same_as "$(planned n1 {} $plan --mem=off)" "$(two_ranks --gpu-bind-mem=off "$see" set 2> /dev/null)"
  out=$(two_ranks --gpu-bind-policy=off sh -c 'echo "${GPU_BIND_PLAN:-none}"')
  [ "$(sort -u <<< "$out")" = none ]
  # A step without GPUs is nobody's.
  [ "$(srun -n1 sh -c 'echo "${GPU_BIND_PLAN:-none}"')" = none ]
  site
}

@test "bind=off binds no one, and says so to who asked" {
  site bind=off
  run --separate-stderr two_ranks --gpu-bind-policy=auto sh -c 'echo "${GPU_BIND_PLAN:-none}"'
  site
  [ "$status" = 0 ]
  [ "$(sort -u <<< "$output")" = none ]
  [[ $stderr == "gpu-bind: switched off on this cluster"* ]]
}

# --- A container plugin, as pyxis is one. ---

# Sets `container` to its line of plugstack.conf.
make_container() {
  local so=$TL_BUILD/tests/e2e/.libs/spank_container.so dir=$TL_LAB/scratch/container
  [ -e "$so" ] || skip "spank_container.so is not built"
  [ "$(lab_value mode)" = network ] || skip "a container would be the machine's own"
  mkdir -p "$dir/etc" "$dir/shared"
  cp -a /etc/passwd /etc/group /etc/nsswitch.conf /etc/ld.so.cache /etc/alternatives "$dir/etc"
  echo container > "$dir/etc/here"
  container="required $so etc=$dir/etc shared=$dir/shared"
}

contained() { two_ranks --gpu-bind-policy=auto "$@" 2> /dev/null; }

@test "after the container's plugin nothing of the plan is lost" {
  make_container
  plugins "$container" "$ours"
  [ "$(contained cat /etc/here | sort -u)" = container ]
  same_as "$(planned n1 {} $plan)" "$(contained "$see" set)"
  # The ranks themselves find it so.
  [ "$(contained gpu-bind check | grep -c '^matches the plan ')" = 2 ]
}

@test "after it, the container's nccl.conf is what gives way to nobody" {
  make_container
  plugins "$container" "$ours"
  echo NCCL_IB_HCA=mlx5_9 > "$TL_LAB/scratch/container/etc/nccl.conf"
  out=$(contained "$see")
  rm "$TL_LAB/scratch/container/etc/nccl.conf"
  echo "$out"
  [[ $out != *NCCL_IB_HCA* ]]
  [ "$(grep -c UCX_NET_DEVICES <<< "$out")" = 2 ]
}

# What gpu-bind-spank(8) says is lost then.
@test "before it, each rank's own variables and the container's nccl.conf are lost; masks are not" {
  make_container
  plugins "$ours" "$container"
  echo NCCL_IB_HCA=mlx5_9 > "$TL_LAB/scratch/container/etc/nccl.conf"
  out=$(contained "$see")
  rm "$TL_LAB/scratch/container/etc/nccl.conf"
  echo "$out"
  # CPUs and memory are the kernel's affair.
  [ "$(cut -d' ' -f2-4 <<< "$out" | sort)" = "0 cpus=0 mem=prefer:0
1 cpus=1 mem=default" ]
  # One rank's port for both, and a list that overrides the container's own.
  [ "$(grep -o 'UCX_NET_DEVICES=[^ ]*' <<< "$out" | sort -u | wc -l)" = 1 ]
  [ "$(grep -c NCCL_IB_HCA==mlx5_0:1,mlx5_1:1 <<< "$out")" = 2 ]
}

@test "no node was drained" {
  plugins "$ours"
  idle() { [ "$(lab run sinfo -h -N -o %T | sort -u)" = idle ]; }
  wait_for 20 idle
}
