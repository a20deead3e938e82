#!/usr/bin/env bats
# Nodes that differ within one job: a DGX A100 (with those of its CPUs that its file names) and a node
# of Frontier's kind (MI250X, Slingshot), each planned from its file. This machine lacks their CPUs:
# masks and memory nodes are told, and applied only where it has them; the environment is each node's.

load common
load bind_common
bats_require_minimum_version 1.5.0

dgx=topologies/topo-m/dgx-a100.topo.txt
frontier=topologies/hwloc/mpibind-eas-tioga.xml

setup_file() {
  [ -e "${TL_SHARED:-}/$dgx" ] && [ -e "${TL_SHARED:-}/$frontier" ] || return 0
  own_lab --nodes 2 --cpus 64 --sockets 2 --gpus 8 \
    --topology "n1=$TL_SHARED/$dgx" --topology "n2=$TL_SHARED/$frontier"
}

teardown_file() { [ ! -e "$TL_BUILD/lab-own/state" ] || own_lab_down; }

# Not in setup_file: Bats 1.8 takes a skip there for a failure.
setup() {
  need_shared $dgx
  need_shared $frontier
  need_nodes 2
}

both() { srun -N2 --exclusive --ntasks-per-node=8 -c8 --gpus-per-node=8 --gpu-bind-policy=auto "$@"; }

@test "each node plans its own machine, in one job" {
  run --separate-stderr both --gpu-bind-report=summary true
  echo "$stderr"
  [ "$status" = 0 ]
  # The GPUs of both in PCI order, as their files have them.
  [ "$(sed -n 's/^gpu-bind: n2 rank \([0-7]\) .*GPU \([0-7]\) \(0000:[0-9a-f:.]*\), .*/\1 \2 \3/p' <<< "$stderr" | sort)" = "0 0 0000:c1:00.0
1 1 0000:c6:00.0
2 2 0000:c9:00.0
3 3 0000:ce:00.0
4 4 0000:d1:00.0
5 5 0000:d6:00.0
6 6 0000:d9:00.0
7 7 0000:de:00.0" ]
  for i in 0 1 2 3 4 5 6 7; do
    grep "^gpu-bind: n2 rank $i .*hsi$((i / 2)) " <<< "$stderr"
    grep "^gpu-bind: n1 rank $i .*GPU $i" <<< "$stderr"
  done
  # What of it is not applied here is said once for each node.
  [ "$(grep -c not-applied <<< "$stderr")" = 2 ]
}

@test "the environment of each rank is its node's" {
  out=$(both "$see" set 2> /dev/null)
  echo "$out"
  # NVIDIA: one list of the compute ports for all, two of them beside each rank; no storage port.
  nvidia=$(grep '^n1 ' <<< "$out")
  [ "$(wc -l <<< "$nvidia")" = 8 ]
  [ "$(grep -o ' NCCL_IB_HCA=[^ ]*' <<< "$nvidia" | sort -u | wc -l)" = 1 ]
  [[ $nvidia != *mlx5_4:* && $nvidia != *mlx5_5:* && $nvidia != *mlx5_10:* && $nvidia != *mlx5_11:* ]]
  [ "$(grep -o ' UCX_NET_DEVICES=[^ ]*' <<< "$nvidia" | sort -u | wc -l)" -ge 4 ]
  [ "$(grep -c ' CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 ' <<< "$nvidia")" = 8 ]
  # AMD: ROCR's mask and no other; Slingshot has no verbs to name.
  amd=$(grep '^n2 ' <<< "$out")
  [ "$(grep -c ' ROCR_VISIBLE_DEVICES=0,1,2,3,4,5,6,7' <<< "$amd")" = 8 ]
  [[ $amd != *CUDA_VISIBLE* && $amd != *NCCL_IB_HCA* && $amd != *UCX_NET* ]]
  # The nodes reach each other, by an interface that each found.
  [ "$(grep -c ' NCCL_SOCKET_IFNAME==eth0' <<< "$out")" = 16 ]
}

@test "train-launch's nodes would be told that they differ: the digests do" {
  [ "$(both printenv GPU_BIND_PLAN 2> /dev/null | sort -u | wc -l)" = 2 ]
}

@test "no node was drained" {
  idle() { [ "$(lab run sinfo -h -N -o %T | sort -u)" = idle ]; }
  wait_for 20 idle
}
