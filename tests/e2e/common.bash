# For every file of tests/e2e: `load common`. Tests share the cluster that tests/run starts (two
# nodes, two CPUs as two sockets, two GPUs each; one node where namespaces are refused); a file that
# needs another one starts its own with own_lab. Run one file by hand with: tests/run all NAME

TL_SOURCE=${TL_SOURCE:-$(cd "$BATS_TEST_DIRNAME/../.." && pwd)}
export TL_SOURCE

lab() { "$TL_SOURCE/tests/lab/lab" "$@"; }

srun() { lab run srun "$@"; }
sbatch() { lab run sbatch "$@"; }
scontrol() { lab run scontrol "$@"; }
squeue() { lab run squeue "$@"; }
scancel() { lab run scancel "$@"; }

# One value of `lab status`.
lab_value() { lab status | sed -n "s/^$1=//p"; }

# Starts a cluster for this file or test alone; it is found in TL_LAB from here on. Put own_lab_down
# into the matching teardown.
own_lab() {
  export TL_LAB=$TL_BUILD/lab-own
  lab up "$@"
}

own_lab_down() { TL_LAB=$TL_BUILD/lab-own lab down; }

# A folder that all nodes and all users see, gone with the cluster.
scratch() {
  local dir=$TL_LAB/scratch/${BATS_TEST_FILENAME##*/}-$BATS_TEST_NUMBER
  mkdir -p "$dir"
  chmod 1777 "$dir"
  echo "$dir"
}

# Skips, with the reason, what this machine or this cluster cannot show --------

need_nodes() {
  [ "$(lab_value nodes)" -ge "$1" ] || skip "needs $1 nodes: $(lab_value reason)"
}

need_program() {
  local name
  for name; do command -v "$name" > /dev/null || skip "$name is not installed"; done
}

need_shared() {
  [ -n "${TL_SHARED:-}" ] && [ -e "$TL_SHARED/$1" ] || skip "no $1: TL_SHARED is not set or lacks it"
}

need_nobody() {
  setpriv --reuid=nobody --regid=nogroup --clear-groups test -x "$TL_BUILD" -a -r "$TL_SOURCE" ||
    skip "nobody cannot read $TL_SOURCE"
}

# An ordinary user on the login node.
as_nobody() { lab run setpriv --reuid=nobody --regid=nogroup --clear-groups "$@"; }

# Polls CMD until it succeeds: wait_for SECONDS CMD...
wait_for() {
  local end=$((SECONDS + $1))
  shift
  until "$@"; do
    if [ $SECONDS -ge $end ]; then
      echo "still not after its deadline: $*"
      return 1
    fi
    sleep 0.1
  done
}

job_state() { lab run scontrol show job "$1" | sed -n 's/^ *JobState=\([A-Z_]*\).*/\1/p'; }

job_ended() {
  case $(job_state "$1") in
    PENDING | CONFIGURING | RUNNING | COMPLETING | '') return 1 ;;
  esac
}
