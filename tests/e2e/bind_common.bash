# For tests/e2e/bind_*.bats, after `load common`: the plan as the planner makes it, and what each rank
# has, in the same words.

see=$TL_SOURCE/tests/e2e/see_rank
seen='cpus=[^ ]* mem=[^ ]*'

# planned NODE MASK ARG...: NODE's ranks as `see_rank set` prints them, from `gpu-bind plan ARG...`.
# MASK is what a rank has that the plan leaves alone, {} in it the rank's number; memory nodes that
# this machine lacks are not applied.
planned() {
  local node=$1 mask=$2
  shift 2
  lab exec "$node" gpu-bind plan --format=wire --node="$node" "$@" |
    awk -v node="$node" -v mask="$mask" -v online="$(cat /sys/devices/system/node/online)" '
      function has(n,   i, part, k, ends) {
        k = split(online, part, ",")
        for (i = 1; i <= k; i++) {
          split(part[i] "-" part[i], ends, "-")
          if (n + 0 >= ends[1] + 0 && n + 0 <= ends[2] + 0) return 1
        }
        return 0
      }
      function finish(   i, n, line) {
        if (rank == "") return
        line = node " " rank " cpus=" cpus " mem=" mem " "
        n = 0
        for (i in value) sorted[++n] = i "=" value[i]
        for (i = 2; i <= n; i++)
          for (j = i; j > 1 && sorted[j] < sorted[j - 1]; j--) {
            t = sorted[j]; sorted[j] = sorted[j - 1]; sorted[j - 1] = t
          }
        for (i = 1; i <= n; i++) line = line sorted[i] (i < n ? " " : "")
        print line
      }
      $1 == "rank" {
        finish()
        rank = $2; cpus = mask; gsub(/[{][}]/, rank, cpus); mem = "default"; delete value
      }
      $1 == "cpus" { cpus = $2 }
      $1 == "mems" && has($3) { mem = ($2 == "bind" ? "bind:" : "prefer:") $3 }
      $1 == "env" { at = index($3, "="); value[substr($3, 1, at - 1)] = substr($3, at + 1) }
      $1 == "end" { finish() }'
}

# Compares what ranks printed with what was planned, whatever their order.
same_as() { diff <(sort <<< "$1") <(sort <<< "$2"); }
