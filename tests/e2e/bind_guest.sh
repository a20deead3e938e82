# What bind_guest.bats has run in the guest: each part below a line "== NAME".
# Its console is a terminal, but what comes here is read by a test.
export TL_LAB=/tmp/lab NO_COLOR=1
lab() { "$TL_SOURCE/tests/lab/lab" "$@"; }
# Every step has the whole machine unless it says otherwise.
srun() { lab run srun -N1 --exclusive "$@"; }
see=$TL_SOURCE/tests/e2e/see_rank

echo "== machine"
"$TL_BUILD/spank/gpu-bind" show

echo "== lab"
lab up --loopback --nodes 1 --cpus 8 --sockets 4 --gpus 4 --constrain --conf MpiDefault=none
lab status | grep -E '^(constrain|gres)='
export GPU_BIND_POLICY=auto

echo "== preferred"
srun -n4 -c2 --gpus-per-node=4 sh -c "$see set; $TL_BUILD/spank/gpu-bind check | tail -n 1"
echo "== bind"
# With where the pages of its own really are.
srun -n4 -c2 --gpus-per-node=4 --gpu-bind-mem=bind sh -c "
  echo \$($see set) pages=\$(grep -E ' (anon|heap|stack)' /proc/self/numa_maps | grep -oE ' N[0-9]+=' | sort -u | tr -d ' =\n')"
echo "== two"
srun -n2 -c4 --gpus-per-node=4 "$see"
echo "== kept"
srun -n4 -c2 --gpus-per-node=4 --cpu-bind=none --mem-bind=local "$see"
echo "== devices"
# One GPU of the four: the group denies the others, a driver would be missed by all.
srun -n1 -c2 --gpus-per-node=1 sh -c "
  echo \$ROCR_VISIBLE_DEVICES
  for i in 0 1 2 3; do head -c 1 $TL_LAB/dev/nvidia\$i 2>&1; done; true" | sed 's/.*: //'
echo "== end"
