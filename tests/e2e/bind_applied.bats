#!/usr/bin/env bats
# What is planned is what ranks have: the mask and the memory policy as the kernel tells them, and the
# environment; in each way of starting a job step, and beside whatever was asked of Slurm itself. On
# the shared cluster: two GPUs and two cores per node, a GPU and a port beside each core.

load common
load bind_common
bats_require_minimum_version 1.5.0

setup() {
  nodes=$(lab_value nodes)
  topology=$TL_SOURCE/tests/lab/topologies/two-sockets.xml
  whole="--topology=$topology --ranks=2 --gpus=0,1"
  # An srun of a job's waits for the end of the one before; what is bound is asked for here.
  export GPU_BIND_POLICY=auto
}

salloc() { lab run salloc -Q -N1 "$@"; }

# A step on one node, of the ranks of one plan.
one_node() { srun -N1 -w n1 --gpus-per-node=2 "$@" 2> /dev/null; }
two_ranks() { one_node -n2 "$@"; }

# The mask, the memory policy and the GPUs of each rank.
brief='s/^n[0-9]* \([0-9]*\) cpus=\([^ ]*\) mem=\([^ ]*\).*CUDA_VISIBLE_DEVICES=\([^ ]*\).*/\1 \2 \3 \4/p'
brief() { sed -n "$brief" | sort; }

@test "mask, memory policy and environment of each rank of each node are the plan's" {
  out=$(srun -N "$nodes" --ntasks-per-node=2 --gpus-per-node=2 "$see" set 2> /dev/null)
  list=n1
  [ "$nodes" = 1 ] || list="n[1-$nodes]"
  want=$(for ((n = 1; n <= nodes; n++)); do planned "n$n" {} $whole --nodelist="$list"; done)
  same_as "$want" "$out"
  # And the plan is what one would do by hand.
  grep -x "n1 0 cpus=0 mem=prefer:0 .* NCCL_IB_HCA==mlx5_0:1,mlx5_1:1 .*UCX_NET_DEVICES=mlx5_0:1" <<< "$out"
  grep "^n1 1 cpus=1 .*UCX_NET_DEVICES=mlx5_1:1" <<< "$out"
}

@test "each option changes the ranks as it changes the plan" {
  for option in visible=own visible=ordered cpu=numa cpu=off cpu=local,smt=1 mem=bind mem=off \
    nic=closest nic=all nic=off nic=list:mlx5_1 env=set env=off; do
    echo "--gpu-bind-$option"
    out=$(two_ranks "--gpu-bind-$option" "$see" set)
    same_as "$(planned n1 {} $whole --nodelist=n1 "--$option")" "$out"
  done
}

@test "one rank for both GPUs keeps its CPUs and memory" {
  out=$(one_node -n1 -c2 "$see" set)
  [[ $out == "n1 0 cpus=0-1 mem=default "* ]]
  [[ $out != *UCX_NET_DEVICES* ]]
  same_as "$(planned n1 0-1 --topology="$topology" --ranks=1 --gpus=0,1 --nodelist=n1)" "$out"
}

@test "gpu-bind check in each rank finds what was planned" {
  run --separate-stderr srun -N "$nodes" --ntasks-per-node=2 --gpus-per-node=2 gpu-bind check
  echo "$output"
  [ "$status" = 0 ]
  [ "$(grep -c '^matches the plan ' <<< "$output")" = $((2 * nodes)) ]
  # And it finds what differs: a rank that has itself moved, and changed what was set.
  run two_ranks sh -c '[ $SLURM_LOCALID = 0 ] || exit 0; UCX_NET_DEVICES=mlx5_1:1 taskset -c 1 gpu-bind check'
  echo "$output"
  [ "$status" != 0 ]
  grep -x 'differs: cpus: planned 0, has 1' <<< "$output"
  grep -x 'differs: UCX_NET_DEVICES: planned mlx5_0:1, has mlx5_1:1' <<< "$output"
}

@test "--cpu-bind stands: no core is bound anew, the rest is" {
  export see brief
  got() { two_ranks "$@" "$see" | brief; }
  [ "$(got --cpu-bind=none)" = "0 0-1 prefer:0 0,1
1 0-1 default 0,1" ]
  [ "$(got --cpu-bind=map_cpu:1,0)" = "0 1 prefer:0 0,1
1 0 default 0,1" ]
  [ "$(got --cpu-bind=mask_cpu:3,2)" = "0 0-1 prefer:0 0,1
1 1 default 0,1" ]
  [ "$(SLURM_CPU_BIND=none got)" = "0 0-1 prefer:0 0,1
1 0-1 default 0,1" ]
  # Slurm's own choice is replaced.
  [ "$(got --cpu-bind=verbose)" = "0 0 prefer:0 0,1
1 1 default 0,1" ]
}

@test "--mem-bind stands" {
  [ "$(two_ranks --mem-bind=map_mem:0 "$see" | brief)" = "0 0 bind:0 0,1
1 1 bind:0 0,1" ]
  [ "$(two_ranks --mem-bind=none "$see" | brief)" = "0 0 default 0,1
1 1 default 0,1" ]
  [ "$(two_ranks --mem-bind=local --gpu-bind-mem=bind "$see" | brief)" = "0 0 bind:0 0,1
1 1 bind:0 0,1" ]
}

@test "GPUs that Slurm gives to tasks stay theirs: --gpus-per-task, --gpu-bind" {
  for option in --gpus-per-task=1 "--gpus-per-node=2 --gpu-bind=single:1" \
    "--gpus-per-node=2 --gpu-bind=map_gpu:0,1" "--gpus-per-node=2 --ntasks-per-gpu=1"; do
    echo "$option"
    # shellcheck disable=SC2086
    run --separate-stderr srun -N1 -n2 $option "$see"
    [ "$status" = 0 ]
    [ "$(cut -d' ' -f2- <<< "$output" | sort | grep -o '^[01] \|CUDA_VISIBLE_DEVICES=[^ ]*' | paste - -)" = "$(
      printf '0 \tCUDA_VISIBLE_DEVICES=0\n1 \tCUDA_VISIBLE_DEVICES=1')" ]
    [[ $output != *UCX_NET_DEVICES* ]]
    [[ $stderr == *gpu-bind-asked* ]]
  done
  # --gpu-bind=none asks for none of this.
  [ "$(two_ranks --gpu-bind=none "$see" | brief)" = "0 0 prefer:0 0,1
1 1 default 0,1" ]
}

@test "steps that run at once with --exact have each the core beside its GPU" {
  out=$(salloc -n2 --gpus-per-node=2 sh -c '
    for i in 0 1; do srun --exact -n1 -c1 --gpus-per-node=1 sh -c "'"$see"'; sleep 2" & done; wait' 2> /dev/null)
  echo "$out"
  grep "cpus=0 mem=prefer:0 .*CUDA_VISIBLE_DEVICES=0 .*NCCL_IB_HCA==mlx5_0:1 UCX_NET_DEVICES=mlx5_0:1" <<< "$out"
  grep "cpus=1 mem=default .*CUDA_VISIBLE_DEVICES=1 .*NCCL_IB_HCA==mlx5_1:1 UCX_NET_DEVICES=mlx5_1:1" <<< "$out"
}

@test "steps that --overlap have each the plan of the whole" {
  out=$(salloc -n2 --gpus-per-node=2 sh -c '
    for i in 0 1; do srun --overlap -n2 --gpus-per-node=2 sh -c "'"$see"' set; sleep 1" & done; wait' 2> /dev/null)
  want=$(planned n1 {} $whole --nodelist=n1)
  same_as "$want
$want" "$(sed 's/^n[0-9]*/n1/' <<< "$out")"
}

@test "each part of a heterogeneous step has a plan of its own" {
  need_nodes 2
  # With --mpi=pmix, srun 22.05 may wait for ever at the end of such a step: each part stops its agent.
  export SLURM_MPI_TYPE=none
  out=$(srun -N1 -n2 --gpus-per-node=2 "$see" : -N1 -n1 -c2 --gpus-per-node=2 "$see" 2> /dev/null)
  out=$(sed 's/^n[0-9]* //' <<< "$out")
  echo "$out"
  grep '^0 cpus=0 mem=prefer:0 .*UCX_NET_DEVICES=mlx5_0:1$' <<< "$out"
  grep '^1 cpus=1 mem=default .*UCX_NET_DEVICES=mlx5_1:1$' <<< "$out"
  grep '^0 cpus=0-1 mem=default ' <<< "$out" | grep -v UCX_NET_DEVICES
  # What one part asks of Slurm leaves that part alone.
  out=$(srun -N1 -n2 --gpus-per-node=2 "$see" : -N1 -n2 --gpus-per-task=1 "$see" 2> /dev/null)
  [ "$(grep -c UCX_NET_DEVICES <<< "$out")" = 2 ]
  [ "$(grep -v UCX_NET_DEVICES <<< "$out" | grep -o 'CUDA_VISIBLE_DEVICES=[^ ]*' | sort)" = "CUDA_VISIBLE_DEVICES=0
CUDA_VISIBLE_DEVICES=1" ]
}

@test "an option of sbatch reaches each srun of each task of an array, and not the script" {
  unset GPU_BIND_POLICY
  dir=$(scratch)
  sbatch -W -N1 -n2 --gpus-per-node=2 --array=0-1 --gpu-bind-policy=auto --gpu-bind-visible=own \
    -o "$dir/out.%a" --wrap "$see; srun $see set; srun --gpu-bind-visible=ordered $see set"
  for i in 0 1; do
    cat "$dir/out.$i"
    out=$(grep '^n' "$dir/out.$i" | sed 's/^n[0-9]*/n1/')
    # The script: all the job's CPUs, and nothing of ours.
    [ "$(head -n1 <<< "$out")" = "n1 0 cpus=0-1 mem=default CUDA_VISIBLE_DEVICES=0,1" ]
    same_as "$(planned n1 {} $whole --nodelist=n1 --visible=own; planned n1 {} $whole --nodelist=n1)" \
      "$(tail -n +2 <<< "$out")"
  done
}

@test "what the script exports is the user's in each srun of it" {
  out=$(NCCL_IB_HCA=mine salloc -n2 --gpus-per-node=2 srun sh -c 'echo $NCCL_IB_HCA $UCX_NET_DEVICES $GPU_BIND_SET' 2> /dev/null)
  [ "$(cut -d' ' -f1 <<< "$out" | sort -u)" = mine ]
  [[ $out != *,NCCL_IB_HCA* ]]
  [[ $out == *UCX_NET_DEVICES* ]]
}

@test "a nested step keeps what a rank's user says is not ours, by taking it out of GPU_BIND_SET" {
  # The outer step sets NCCL_IB_HCA; its program then sets its own and says so.
  out=$(two_ranks sh -c '[ $SLURM_LOCALID = 0 ] || exit 0
    export NCCL_IB_HCA=mine GPU_BIND_SET=UCX_NET_DEVICES
    srun --overlap -N1 -n1 sh -c "echo \$NCCL_IB_HCA \$UCX_NET_DEVICES"')
  [ "$out" = "mine mlx5_0:1" ] || [ "$out" = mine ]
}

@test "each report says what the ranks have" {
  report() { two_ranks_err "--gpu-bind-report=$1" true; }
  two_ranks_err() { srun -N1 -w n1 -n2 --gpus-per-node=2 "$@" 2>&1 > /dev/null; }
  [ -z "$(report none | grep -v not-applied)" ]
  [ "$(report summary | grep -c '^gpu-bind: n1 rank [01] ')" = 2 ]
  [ "$(report full | grep -c '^gpu-bind: n1: rank [01]: CPUs [01]: ')" = 2 ]
  report doctor | grep -F '[cores-one; mend it with: --cpus-per-task]'
  out=$(report json)
  for i in 0 1; do
    grep "^{\"node\":\"n1\",\"local_rank\":$i,.*\"nics\":\[\"mlx5_$i:1\"\],.*\"cpus\":\"$i\",.*}$" <<< "$out"
  done
}

@test "no node was drained" {
  idle() { [ "$(lab run sinfo -h -N -o %T | sort -u)" = idle ]; }
  wait_for 20 idle
}
