#!/usr/bin/env bats
# The plugin with the real planner, on the shared cluster: two GPUs and two cores per node, a GPU and
# a port (mlx5_0, mlx5_1) beside each core (tests/lab/topologies/two-sockets.xml).

load common
bats_require_minimum_version 1.5.0

setup() {
  nodes=$(lab_value nodes)
  ranks=$((2 * nodes))
  plugin_options="policy visible cpu mem nic env report strict"
}

salloc() { lab run salloc "$@"; }

# Two ranks on each node, each with its options and command.
bound() { srun -N "$nodes" --ntasks-per-node=2 --gpus-per-node=2 "$@"; }

mask_of_each='echo "$SLURMD_NODENAME $SLURM_LOCALID $(sed -n "s/^Cpus_allowed_list:\t//p" /proc/self/status)"'

# The variables that a plan sets, sorted: for one rank.
ours='env | grep -E "^(GPU_BIND_(SET|PLAN)|NCCL_|GLOO_|UCX_)" | sort'

@test "srun --help lists the options, and so do sbatch and salloc" {
  for command in srun sbatch salloc; do
    run "$command" --help
    for option in $plugin_options; do
      [ "$(grep -c -- "--gpu-bind-$option=" <<< "$output")" = 1 ]
    done
    [[ $output != *conflict* ]]
  done
}

@test "the manual page has every option that srun --help has" {
  options=$(srun --help | grep -oE -- '--gpu-bind-[a-z]+' | sort -u)
  [ "$(wc -l <<< "$options")" = 8 ]
  for option in $options; do
    grep -q "^\.It Fl $(sed 's/^-//' <<< "$option") " "$TL_SOURCE/man/gpu-bind-spank.8"
  done
}

@test "help explains an option and runs nothing" {
  for option in $plugin_options; do
    run --separate-stderr srun "--gpu-bind-$option=help" echo ran_anyway
    [ "$status" = 0 ]
    [[ $output == "--gpu-bind-$option="*GPU_BIND_* ]]
    [[ $output != *ran_anyway* ]]
    [ -z "$stderr" ]
  done
}

@test "a wrong value stops srun, sbatch and salloc with one line" {
  for command in "srun true" "sbatch --wrap=true" "salloc true"; do
    read -r name rest <<< "$command"
    run "$name" --gpu-bind-policy=bogus $rest
    [ "$status" = 1 ]
    [ "$output" = "$name: error: gpu-bind: --gpu-bind-policy=bogus: no such value; use auto, closest, map:<gpus>, off or help" ]
    GPU_BIND_STRICT=perhaps run "$name" $rest
    [ "$status" = 1 ]
    [ "$output" = "$name: error: gpu-bind: GPU_BIND_STRICT=perhaps: no such value; use yes, no or help" ]
  done
}

@test "without our options srun, sbatch and salloc print nothing new and change nothing" {
  run srun -n1 --gpus-per-node=2 sh -c "$ours; echo ran"
  [ "$status" = 0 ]
  [ "$output" = ran ]
  run salloc -Q -n1 true
  [ "$status" = 0 ]
  [ -z "$output" ]
  run sbatch -W -n1 -o /dev/null --wrap true
  [ "$status" = 0 ]
  [[ $output =~ ^Submitted\ batch\ job\ [0-9]+$ ]]
}

@test "each rank runs on the cores of its GPU" {
  run --separate-stderr bound --gpu-bind-policy=auto sh -c "$mask_of_each"
  [ "$status" = 0 ]
  expected=$(for ((n = 1; n <= nodes; n++)); do echo "n$n 0 0"; echo "n$n 1 1"; done)
  [ "$(sort <<< "$output")" = "$expected" ]
}

@test "the environment has the node's ports, the rank's own, and what was set" {
  out=$(bound --gpu-bind-policy=auto sh -c 'echo "$SLURM_LOCALID $NCCL_IB_HCA $UCX_NET_DEVICES $CUDA_DEVICE_ORDER"' | sort -u)
  [ "$out" = "0 =mlx5_0:1,mlx5_1:1 mlx5_0:1 PCI_BUS_ID
1 =mlx5_0:1,mlx5_1:1 mlx5_1:1 PCI_BUS_ID" ]
  # One plan for all nodes, and each name in GPU_BIND_SET is a variable that is there.
  [ "$(bound --gpu-bind-policy=auto printenv GPU_BIND_PLAN | sort -u | wc -l)" = 1 ]
  bound --gpu-bind-policy=auto sh -c 'IFS=,; for name in $GPU_BIND_SET; do printenv "$name" > /dev/null || exit 1; done'
}

@test "the user's own variables stay, unless told otherwise" {
  export NCCL_IB_HCA=mine
  got='echo "$NCCL_IB_HCA"; case ",$GPU_BIND_SET," in *,NCCL_IB_HCA,*) echo set;; *) echo kept;; esac'
  one() { srun -n1 --gpus-per-node=2 "$@" sh -c "$got"; }
  [ "$(one --gpu-bind-policy=auto)" = "mine
kept" ]
  [ "$(one --gpu-bind-env=set)" = "=mlx5_0:1
set" ] || [ "$(one --gpu-bind-env=set)" = "=mlx5_0:1,mlx5_1:1
set" ]
  unset NCCL_IB_HCA
  out=$(srun -n1 --gpus-per-node=2 --gpu-bind-env=off sh -c 'env | grep -E "^(NCCL|UCX|GLOO)_"; echo "$GPU_BIND_SET"')
  [ "$out" = CUDA_VISIBLE_DEVICES,CUDA_DEVICE_ORDER ]
}

@test "what nccl.conf sets is left to it" {
  dir=$(scratch)
  echo NCCL_IB_HCA=from_file > "$dir/nccl.conf"
  export NCCL_CONF_FILE=$dir/nccl.conf
  out=$(srun -n1 --gpus-per-node=1 --gpu-bind-policy=auto env)
  [[ $out != *NCCL_IB_HCA=* ]]
  [[ $out == *UCX_NET_DEVICES=* ]]
  unset NCCL_CONF_FILE
  mkdir "$dir/home"
  mv "$dir/nccl.conf" "$dir/home/.nccl.conf"
  out=$(HOME=$dir/home srun -n1 --gpus-per-node=2 --gpu-bind-policy=auto env)
  [[ $out != *NCCL_IB_HCA=* ]]
  # A FIFO in its place neither hangs nor counts.
  rm "$dir/home/.nccl.conf"
  mkfifo "$dir/home/.nccl.conf"
  out=$(HOME=$dir/home srun -n1 --gpus-per-node=1 --gpu-bind-policy=auto env)
  [[ $out == *NCCL_IB_HCA=* ]]
}

@test "the summary has one line for each rank" {
  run --separate-stderr bound --gpu-bind-report=summary true
  [ "$status" = 0 ]
  [ "$(grep -c '^gpu-bind: n[0-9]* rank [01] ' <<< "$stderr")" = "$ranks" ]
  for ((n = 1; n <= nodes; n++)); do
    grep "^gpu-bind: n$n rank 0 .*0000:03:00.0.* CPUs 0.*mlx5_0:1" <<< "$stderr"
    grep "^gpu-bind: n$n rank 1 .*0000:83:00.0.* CPUs 1.*mlx5_1:1" <<< "$stderr"
  done
}

@test "an option of sbatch binds each srun of the script, and not the script" {
  out=$(scratch)/out
  cat > "$(scratch)/job" <<END
#!/bin/sh
#SBATCH -N1 --ntasks-per-node=2 --gpus-per-node=2 --gpu-bind-policy=auto
echo "script \$(sed -n 's/^Cpus_allowed_list:	//p' /proc/self/status) \$GPU_BIND_PLAN"
srun sh -c 'echo "rank \$SLURM_PROCID \$(sed -n "s/^Cpus_allowed_list:	//p" /proc/self/status) \${GPU_BIND_PLAN:+planned}"'
srun --gpu-bind-policy=off sh -c 'echo "off \${GPU_BIND_PLAN:+planned}"'
END
  sbatch -W -o "$out" "$(scratch)/job"
  cat "$out"
  grep -x 'script 0-1 ' "$out"
  grep -x 'rank 0 0 planned' "$out"
  grep -x 'rank 1 1 planned' "$out"
  [ "$(grep -cx 'off ' "$out")" = 2 ]
}

@test "an option of salloc binds each srun inside" {
  run salloc -Q -n1 --gpus-per-node=2 --gpu-bind-policy=auto srun sh -c 'echo ${GPU_BIND_PLAN:+planned}'
  [ "$status" = 0 ]
  [ "$output" = planned ]
}

@test "a step without GPUs is left alone" {
  run srun -n1 --gpu-bind-policy=auto --gpu-bind-report=summary sh -c "$ours; echo ran"
  [ "$status" = 0 ]
  [ "$output" = ran ]
}

@test "a variable asks as an option does, and the option wins" {
  plan='[ "$GPU_BIND_PLAN" ] && echo planned || echo none'
  [ "$(GPU_BIND_POLICY=auto srun -n1 --gpus-per-node=1 sh -c "$plan")" = planned ]
  [ "$(GPU_BIND_POLICY=off srun -n1 --gpus-per-node=1 --gpu-bind-report=none sh -c "$plan")" = none ]
  [ "$(GPU_BIND_POLICY=off srun -n1 --gpus-per-node=1 --gpu-bind-policy=auto sh -c "$plan")" = planned ]
  [ "$(GPU_BIND_POLICY=auto srun -n1 --gpus-per-node=1 --gpu-bind-policy=off sh -c "$plan")" = none ]
}

@test "what was asked of Slurm itself is respected" {
  asked='echo "$GPU_BIND_ASKED $(sed -n "s/^Cpus_allowed_list:\t//p" /proc/self/status)"'
  one() { srun -n1 -c2 --gpus-per-node=1 --gpu-bind-policy=auto "$@" sh -c "$asked"; }
  [ "$(one)" = "none 0" ]
  [ "$(one --cpu-bind=none)" = "cpu 0-1" ]
  [ "$(one --cpu-bind=map_cpu:1)" = "cpu 1" ]
  [ "$(one --mem-bind=local)" = "mem 0" ]
  [ "$(one --gpu-bind=none)" = "none 0" ]
  [ "$(srun -n2 --gpus-per-task=1 --gpu-bind-policy=auto sh -c 'echo $GPU_BIND_ASKED $CUDA_VISIBLE_DEVICES' | sort)" = "gpu 0
gpu 1" ]
}

@test "GPUs that Slurm chose unseen leave the step unbound, with the reason" {
  # --export=NONE keeps srun's word from the node.
  run --separate-stderr srun -n2 --export=NONE --gpus-per-task=1 --gpu-bind-policy=auto \
    /bin/sh -c 'echo "$SLURM_LOCALID $CUDA_VISIBLE_DEVICES ${GPU_BIND_PLAN:+planned}"'
  [ "$status" = 0 ]
  [ "$(sort <<< "$output")" = "0 0 
1 1 " ]
  [ "$(grep -c 'Slurm chose GPUs for each task' <<< "$stderr")" = 1 ]
  # Memory nodes that this machine may lack would stop the step first.
  run srun -n2 --export=NONE --gpus-per-task=1 --gpu-bind-mem=off --gpu-bind-strict=yes /bin/true
  [ "$status" != 0 ]
  [[ $output == *"job step stopped: Slurm chose GPUs for each task"* ]]
}

@test "a step inside a bound one does not take our variables for the user's" {
  need_nodes 2
  # The outer step spans two nodes and has an interface set; the inner one does not need it.
  out=$(srun -N2 -n2 --gpus-per-node=2 --gpu-bind-policy=auto sh -c '
    [ "$SLURM_PROCID" = 0 ] || exit 0
    echo "outer ${NCCL_SOCKET_IFNAME:-none}"
    exec srun -N1 -n1 -w "$SLURMD_NODENAME" --overlap --gpu-bind-policy=auto \
      sh -c "echo inner \${NCCL_SOCKET_IFNAME:-none} \${NCCL_IB_HCA:-none}"')
  [[ $out == *"outer =eth0"* ]]
  [[ $out == *"inner none =mlx5_0:1"* ]]
}

@test "an ordinary user's ranks are bound" {
  need_nobody
  out=$(as_nobody srun -N1 -n2 --gpus-per-node=2 --gpu-bind-policy=auto -D / \
    sh -c 'echo "$(id -un) $SLURM_LOCALID $(sed -n "s/^Cpus_allowed_list:\t//p" /proc/self/status)"')
  [ "$(sort <<< "$out")" = "nobody 0 0
nobody 1 1" ]
}

@test "no node was drained" {
  idle() { [ "$(lab run sinfo -h -N -o %T | sort -u)" = idle ]; }
  wait_for 20 idle
}
