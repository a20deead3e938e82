#!/usr/bin/env bats
# gpu-bind on the command line: what it prints where, and its exit codes.

bats_require_minimum_version 1.5.0

setup() {
  cd "${TL_SOURCE:-$BATS_TEST_DIRNAME/../..}" || return
  planner=$TL_BUILD/spank/gpu-bind
  [ -x "$planner" ] || skip "gpu-bind was not built"
  lab=tests/lab/topologies
  # Root's, and below directories that are root's: what a site's file must be.
  trusted=
}

teardown() { [ -z "$trusted" ] || rm -rf "$trusted"; }

# usage: site TEXT: a gpu-bind.conf with this text, in $config
site() {
  [ "$(id -u)" = 0 ] || skip "only root can write what is trusted"
  trusted=$(mktemp -d /run/gpu-bind-test-XXXXXX) || skip "/run cannot be written"
  config=$trusted/gpu-bind.conf
  printf '%s\n' "$1" > "$config"
  chmod 755 "$trusted"
  chmod 644 "$config"
}

refused() {
  local status_expected=$1
  shift
  run --separate-stderr "$planner" "$@"
  echo "$stderr"
  [ "$status" -eq "$status_expected" ]
  [ -z "$output" ]
  [ "${#stderr_lines[@]}" -eq 1 ]
  [[ $stderr == "gpu-bind: "* ]]
}

@test "every key of the configuration has its place in its page" {
  run "$planner" --help
  [ "$status" -eq 0 ]
  for key in bind policy visible cpu mem nic env report strict topology topology-check timeout-ms \
    nic-include nic-exclude nccl-topology; do
    grep -qx "\.It Cm $key" man/gpu-bind.conf.5
  done
}

@test "version" {
  run "$planner" --version
  [ "$status" -eq 0 ]
  [[ $output == "gpu-bind (train-launch) "[0-9]* ]]
}

@test "wrong usage: one line on stderr, exit 2" {
  refused 2
  refused 2 paint
  refused 2 plan --colour=red
  refused 2 plan more
  refused 2 plan --ranks=0
  refused 2 plan --ranks=1025
  refused 2 plan --ranks=1,2
  refused 2 plan --gpus=a
  refused 2 plan --cores=3-1
  refused 2 plan --asked=disk
  refused 2 plan --devices='a;b'
  refused 2 plan --format=png
  refused 2 plan --policy=map:1,
  refused 2 plan --topology "$lab/four-gpus.xml" --policy=map:0,4
  [[ $stderr == *"the step has GPUs 0-3; its GPUs count from 0"* ]]
  refused 2 plan --policy=nearest
  [[ $stderr == *"use one of auto, closest, map:LIST, off"* ]]
  refused 2 plan --policy
  refused 2 plan --config=/nowhere/gpu-bind.conf
}

@test "files that are no topology: one line with the file's name, exit 2" {
  head -c 2000 "$lab/two-sockets.xml" > "$BATS_TEST_TMPDIR/cut.xml"
  : > "$BATS_TEST_TMPDIR/empty.xml"
  for file in /nowhere.xml /dev/zero . README.md "$BATS_TEST_TMPDIR/cut.xml" "$BATS_TEST_TMPDIR/empty.xml"; do
    refused 2 plan --topology="$file"
    [[ $stderr == "gpu-bind: $file: "* ]]
    refused 2 show --topology "$file"
  done
}

@test "what cannot be planned: exit 1" {
  refused 1 plan --topology "$lab/two-sockets.xml" --gpus=0-2
  [[ $stderr == *"GPU 2"* ]]
  refused 1 plan --topology "$lab/two-sockets.xml" --nic=list:mlx5_7
}

@test "the plugin hears of errors on standard output" {
  run --separate-stderr "$planner" plan --format=wire --topology "$lab/two-sockets.xml" --gpus=7
  [ "$status" -eq 1 ]
  [[ $output == "error the step has GPU 7"* ]]
  [ "${#lines[@]}" -eq 1 ]
  run "$planner" plan --format=wire --policy=nearest
  [ "$status" -eq 2 ]
  [[ $output == "error --policy=nearest: use one of auto, closest, map:LIST, off" ]]
  run "$planner" show --format=wire
  [ "$status" -eq 2 ]
  [ "$output" = "error --format: show has text, json, svg and nccl-xml" ]
}

@test "a plan for a machine in a file" {
  run "$planner" plan --topology "$lab/four-gpus.xml"
  [ "$status" -eq 0 ]
  [[ $output == *"2     2    0000:83:00.0  mlx5_2:1  PIX   1       1"* ]]
  run "$planner" show --topology "$lab/four-gpus.xml"
  [ "$status" -eq 0 ]
  [[ $output == *"mlx5_0:1  0000:04:00.0  0     infiniband  400 Gb/s  yes"* ]]
  run "$planner" plan --topology "$lab/two-sockets.xml" --format wire --gpus 0,1 --node n1 --report summary
  [ "$status" -eq 0 ]
  [ "${lines[0]}" = "gpu-bind-wire 1" ]
  [[ $output == *$'\nrank 1\ncpus 1\nmems preferred 1\n'* ]]
  [[ $output == *"gpu-bind: n1 rank 1 (local): GPU 1 0000:83:00.0, CPUs 1, memory node 1, NIC mlx5_1:1 (PIX)"* ]]
  [ "${lines[-1]}" = end ]
}

@test "pictures are well-formed XML of shapes and words, for every machine there is a file of" {
  command -v python3 > /dev/null || skip "python3 is not installed"
  shared=${TL_SHARED:-../shared}/topologies
  files=("$lab"/*.xml tests/data/*.xml)
  if [ -d "$shared" ]; then files+=("$shared"/hwloc/*.xml "$shared"/nccl-as-hwloc/*.xml); fi
  for file in "${files[@]}"; do
    for command in plan show; do
      "$planner" "$command" --topology "$file" --format=svg > "$BATS_TEST_TMPDIR/picture.svg"
      python3 - "$BATS_TEST_TMPDIR/picture.svg" "$file" << 'END'
import os, sys
import xml.etree.ElementTree as xml
root = xml.parse(sys.argv[1]).getroot()
kinds = {e.tag.removeprefix("{http://www.w3.org/2000/svg}") for e in root.iter()}
assert kinds <= {"svg", "title", "rect", "g", "path", "text", "circle"}, kinds
assert any(os.path.basename(sys.argv[2])[:40] in (e.text or "") for e in root.iter()), "no file name"
END
    done
  done
}

@test "the README's picture is what the planner draws" {
  "$planner" plan --topology tests/data/eight-gpus.xml --format=svg |
    diff - etc/examples/plan.svg
}

@test "colours on a terminal only, and not where NO_COLOR asks for none" {
  command=("$planner" plan --topology "$lab/four-gpus.xml")
  run env -u NO_COLOR TERM=xterm "${command[@]}"
  [ "$status" -eq 0 ]
  [[ $output != *$'\e'* ]]
  command -v script > /dev/null || skip "script is not installed"
  on_terminal="script -qec '${command[*]}' /dev/null"
  run env -u NO_COLOR TERM=xterm sh -c "$on_terminal"
  [ "$status" -eq 0 ]
  [[ $output == *$'\e'* ]]
  for quiet in "NO_COLOR=1 TERM=xterm" "TERM=dumb"; do
    run env -u NO_COLOR $quiet sh -c "$on_terminal"
    [ "$status" -eq 0 ]
    [[ $output == *mlx5_2:1* ]]
    [[ $output != *$'\e'* ]]
  done
}

@test "Slurm's words go with their GPUs, in whatever order it lists them" {
  run "$planner" plan --topology "$lab/four-gpus.xml" --format=wire --visible=own --gpus=3,1 --devices=GPU-c,GPU-a
  [ "$status" -eq 0 ]
  [[ $output == *$'rank 0\n'*"CUDA_VISIBLE_DEVICES=GPU-a"$'\n'*"rank 1"$'\n'*"CUDA_VISIBLE_DEVICES=GPU-c"* ]]
}

@test "this machine can be shown and planned for" {
  run "$planner" show
  [ "$status" -eq 0 ]
  [[ $output == "this machine: "* ]]
  run "$planner" plan --ranks=1
  [ "$status" -eq 0 ]
}

@test "without a list of GPUs a step has none, unless it has the node" {
  run "$planner" plan --format=wire --topology "$lab/two-sockets.xml" --ranks=2
  [ "$status" -eq 0 ]
  [[ $output != *VISIBLE_DEVICES* ]]
  run "$planner" plan --format=wire --topology "$lab/two-sockets.xml" --ranks=2 --exclusive
  [ "$status" -eq 0 ]
  [[ $output == *"env set CUDA_VISIBLE_DEVICES=0,1"* ]]
}

# A rank that is bound as the plan for this machine would bind it.
@test "check: a process that has what is planned, and one that has not" {
  run "$planner" check --format=json --ranks=1
  [ "$status" -eq 0 ]
  [ "${#lines[@]}" -eq 1 ]
  [[ $output == '{"version":1,"rank":0,'*'"matches":true,"differs":{}'* ]]

  "$planner" plan --ranks=1 --format=json > "$BATS_TEST_TMPDIR/plan.json"
  run env UCX_NET_DEVICES=mine "$planner" check --plan "$BATS_TEST_TMPDIR/plan.json"
  [ "$status" -eq 0 ]
  [[ $output == *"  UCX_NET_DEVICES mine"*"matches the plan" ]]

  sed 's/"cpus": "[^"]*",\( *\)$/"cpus": "4000-4001",\1/' "$BATS_TEST_TMPDIR/plan.json" > "$BATS_TEST_TMPDIR/other.json"
  run "$planner" check --plan "$BATS_TEST_TMPDIR/other.json"
  echo "$output"
  [ "$status" -eq 1 ]
  [[ $output == *"differs: cpus: planned 4000-4001, has "* ]]
}

@test "check: plans that are none" {
  echo '{"version": 1}' > "$BATS_TEST_TMPDIR/none.json"
  for file in /nowhere.json README.md "$BATS_TEST_TMPDIR/none.json"; do
    refused 2 check --plan "$file"
    [[ $stderr == "gpu-bind: $file: "* ]]
  done
  refused 2 check more
  refused 2 plan --plan="$BATS_TEST_TMPDIR/none.json"
}

@test "doctor: this process, and ranks in files" {
  run "$planner" doctor --topology "$lab/four-gpus.xml"
  echo "$output"
  [[ $output == *"1 rank on 1 node" ]]
  export SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=2 SLURM_NODEID=0
  export SLURM_CONF=/nowhere PMIX_RANK=0 CUDA_DEVICE_ORDER=PCI_BUS_ID
  for rank in 0 1; do
    SLURM_PROCID=$rank SLURM_LOCALID=$rank GLOO_SOCKET_IFNAME='=eth0' CUDA_VISIBLE_DEVICES=2 \
      "$planner" check --format=json --topology "$lab/four-gpus.xml" > "$BATS_TEST_TMPDIR/$rank.json"
  done
  run "$planner" doctor "$BATS_TEST_TMPDIR/0.json" "$BATS_TEST_TMPDIR/1.json"
  echo "$output"
  [ "$status" -eq 1 ]
  [[ $output == *"error: "*" ranks 0-1: GLOO_SOCKET_IFNAME==eth0 is in NCCL's syntax"*"[gloo-syntax]"$'\n'"  mend it with: "* ]]
  [[ $output == *"ranks 0-1: several ranks compute on one GPU"*"GPU 0000:83:00.0, 2 ranks) [gpus-shared]"* ]]
  cat "$BATS_TEST_TMPDIR"/?.json > "$BATS_TEST_TMPDIR/all"
  run bash -c "'$planner' doctor --format=json - < '$BATS_TEST_TMPDIR/all'"
  [[ $output == *'"ranks": 2,'*'"code": "gpus-shared"'* ]]
}

@test "doctor as a report: what ranks will have, as the plugin prints it" {
  ask=(plan --format=wire --topology "$lab/four-gpus.xml" --exclusive --node=n1 --report=doctor)
  run "$planner" "${ask[@]}" --environment=$'NCCL_IB_HCA=mlx5_9\nGLOO_SOCKET_IFNAME=^lo\nSLURM_RLIMIT_MEMLOCK=65536'
  echo "$output"
  [ "$status" -eq 0 ]
  [[ $output == *$'\nsay gpu-bind: n1: error: ranks 0-3: GLOO_SOCKET_IFNAME=^lo is in NCCL\'s syntax'*"[gloo-syntax; mend it with: "* ]]
  [[ $output == *"NCCL_IB_HCA names mlx5_9, which this node does not have [nic-missing; "* ]]
  [[ $output == *"64 KiB"*"[memlock-low; "* ]]
  run "$planner" "${ask[@]}" --environment=nothing
  [ "$status" -eq 2 ]
  [[ $output == "error --environment: not of the form NAME=VALUE" ]]
}

@test "doctor: files that are none of check" {
  refused 2 doctor README.md
  [[ $stderr == "gpu-bind: README.md: no object"* ]]
  refused 2 doctor /nowhere.json
  refused 2 doctor - < /dev/null
  refused 2 doctor --topology README.md
}

@test "doctor and check: files that never end or never begin are refused in time" {
  facts=$BATS_TEST_TMPDIR/facts.json fifo=$BATS_TEST_TMPDIR/fifo
  "$planner" check --format=json > "$facts" || true
  mkfifo "$fifo"
  for ask in doctor "check --plan"; do
    run --separate-stderr timeout 60 "$planner" $ask "$fifo"
    [ "$status" -eq 2 ]
    [ "$stderr" = "gpu-bind: $fifo: nobody has opened this pipe to write within 5 s" ]
    run --separate-stderr timeout 60 "$planner" $ask /dev/zero
    [ "$status" -eq 2 ]
    [ "$stderr" = "gpu-bind: /dev/zero: is a device; name a file, or - for standard input" ]
    run --separate-stderr timeout 60 "$planner" $ask "$BATS_TEST_TMPDIR"
    [ "$status" -eq 2 ]
    [ "$stderr" = "gpu-bind: $BATS_TEST_TMPDIR: is a folder; name a file in it" ]
  done
  [ ! -r /proc/kmsg ] || [ "$(id -u)" != 0 ] || {
    run timeout 60 "$planner" doctor /proc/kmsg
    [ "$status" -eq 2 ]
  }
}

@test "doctor: pipes, from whoever writes late" {
  facts=$BATS_TEST_TMPDIR/facts.json fifo=$BATS_TEST_TMPDIR/fifo
  "$planner" check --format=json > "$facts" || true
  mkfifo "$fifo"
  read_of() { timeout 60 "$planner" doctor --format=json "$@" | grep -c '"ranks": 1,'; }
  [ "$(read_of "$facts")" = 1 ]
  [ "$(read_of - < "$facts")" = 1 ]
  [ "$(cat "$facts" | read_of -)" = 1 ]
  [ "$(read_of <(cat "$facts"))" = 1 ]
  [ "$(read_of <(sleep 1; cat "$facts"))" = 1 ]
  # A writer that comes late, and one that is there and takes its time.
  (sleep 1; cat "$facts" > "$fifo") &
  [ "$(read_of "$fifo")" = 1 ]
  wait
  (exec > "$fifo"; sleep 7; cat "$facts") &
  [ "$(read_of "$fifo")" = 1 ]
  wait
  # One that comes and goes without a word, with a name and without.
  (: > "$fifo") &
  run timeout 60 "$planner" doctor "$fifo"
  [ "$status" -eq 2 ]
  [[ $output != *"nobody has opened"* ]]
  wait
  run timeout 60 "$planner" doctor <(true)
  [ "$status" -eq 2 ]
}

@test "what users and files give is shown on one line, without control characters" {
  escape=$'\e[31m'
  one_clean_line() {
    refused "$@"
    [[ $stderr != *[[:cntrl:]]* ]]
  }
  printf '\tGPU0\tCPU Affinity\nGPU0\t X \t0-\001\b3\n' > "$BATS_TEST_TMPDIR/matrix"
  one_clean_line 2 plan --topology "$BATS_TEST_TMPDIR/matrix"
  [[ $stderr == *"CPU affinity "*"?"* ]]
  one_clean_line 2 plan --topology "$BATS_TEST_TMPDIR/none$escape"
  one_clean_line 2 show --topology "$BATS_TEST_TMPDIR/none"$'\nline'
  one_clean_line 2 doctor "$BATS_TEST_TMPDIR/none$escape"
  one_clean_line 2 check --plan "$BATS_TEST_TMPDIR/none"$'\r\n'
  one_clean_line 1 plan --topology "$lab/four-gpus.xml" --nic=$'list:a\nb'
  one_clean_line 2 plan --cpu="$escape"
  one_clean_line 2 "plan$escape"
  one_clean_line 2 "--none$escape"
  run "$planner" plan --format=wire --topology "$lab/four-gpus.xml" --nic=$'list:a\nb'
  [ "${#lines[@]}" -eq 1 ]
  # Letters beyond ASCII stay.
  refused 2 plan --topology "/nowhere/größe"
  [[ $stderr == *größe* ]]
}

@test "a failing show says its error alone" {
  matrix=$BATS_TEST_TMPDIR/matrix
  printf '\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tSYS\t0-3\t0\nGPU1\tSYS\t X \t0-3\t1\n' > "$matrix"
  run --separate-stderr "$planner" show --topology "$matrix"
  [ "$status" -eq 0 ]
  [ "${#stderr_lines[@]}" -ge 1 ]
  run --separate-stderr "$planner" show --topology "$matrix" --format=nccl-xml
  echo "$stderr"
  [ "$status" -ne 0 ]
  [ -z "$output" ]
  [ "${#stderr_lines[@]}" -eq 1 ]
}

@test "one device twice is a mistake" {
  refused 2 plan --topology "$lab/four-gpus.xml" --gpus=0-2 --devices=0,0,0
  [[ $stderr == "gpu-bind: --devices: names the device 0 twice" ]]
}

@test "check: in a job step, no line that srun would cut" {
  export SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=3 SLURM_LOCALID=1 SLURM_NODEID=1
  export SLURM_STEP_NUM_TASKS=4 SLURM_STEP_TASKS_PER_NODE='2(x2)'
  run "$planner" check --format=json --topology "$lab/four-gpus.xml"
  [ "${#lines[@]}" -gt 1 ]
  for line in "${lines[@]}"; do
    [ "${#line}" -le 1000 ]
    [[ $line == '{"version":1,"rank":3,"node":"'*'","job":"7","step":"0",'*'}' ]]
  done
}

@test "hwloc's variables do not reach it" {
  export HWLOC_XMLFILE=/nowhere.xml HWLOC_SYNTHETIC='pu:77' HWLOC_XML_VERBOSE=1 HWLOC_COMPONENTS=xml
  run --separate-stderr "$planner" show
  [ "$status" -eq 0 ]
  [ -z "$stderr" ]
  [[ $output != *"77 CPUs"* ]]
}

@test "show writes a topology file for NCCL, and no other command does" {
  run "$planner" show --topology "$lab/four-gpus.xml" --format=nccl-xml
  [ "$status" -eq 0 ]
  [ "$(head -n 1 <<< "$output")" = '<system version="1">' ]
  [ "$(tail -n 1 <<< "$output")" = '</system>' ]
  [[ $output == *'affinity="'*'arch="'* ]]
  refused 2 plan --topology "$lab/four-gpus.xml" --format=nccl-xml
}

@test "the site's file sets defaults, the command line overrides them" {
  site $'cpu=numa # site\nreport=summary'
  run "$planner" plan --config "$config" --topology "$lab/two-sockets.xml" --format=wire --exclusive
  [ "$status" -eq 0 ]
  [[ $output == *"say gpu-bind: rank 0 (local)"* ]]
  run "$planner" plan --config "$config" --topology "$lab/two-sockets.xml" --format=wire --exclusive --report=none
  [[ $output != *"say "* ]]
  echo 'colour=red' >> "$config"
  refused 2 plan --config "$config"
  [[ $stderr == "gpu-bind: $config:3: unknown key 'colour'"* ]]
}

@test "the site's switch: on-request needs a request, off is off" {
  empty=$'gpu-bind-wire 1\ndigest 0\nend'
  ask=(plan --format=wire --topology "$lab/two-sockets.xml" --exclusive)
  run "$planner" "${ask[@]}" --requested=no
  [ "$output" = "$empty" ]
  run "$planner" "${ask[@]}" --requested=yes
  [[ $output == *"rank 1"* ]]
  site 'bind=always'
  run "$planner" "${ask[@]}" --config "$config" --requested=no
  [[ $output == *"rank 1"* ]]
  echo 'bind=off' > "$config"
  run "$planner" "${ask[@]}" --config "$config" --requested=yes
  [ "$output" = "$empty" ]
}

@test "a site's topology file is used only if its CPUs are the machine's, or unchecked" {
  # One CPU more than this machine has.
  cpus=$(getconf _NPROCESSORS_CONF)
  command -v lstopo-no-graphics > /dev/null || skip "lstopo is not installed"
  site 'report=none'
  lstopo-no-graphics --input "pu:$((cpus + 1))" --of xml "$trusted/larger.xml"
  printf 'topology=%s\n' "$trusted/larger.xml" > "$config"
  run "$planner" plan --config "$config" --format=wire --ranks=1
  [ "$status" -eq 0 ]
  [[ $output == *"warn gpu-bind: "*"the file is not used"* ]]
  printf 'topology-check=off\n' >> "$config"
  run "$planner" plan --config "$config" --format=wire --ranks=$((cpus + 1))
  [ "$status" -eq 0 ]
  [[ $output == *"warn gpu-bind: CPUs of ranks $cpus are not on this machine"* ]]
  [[ $output != *"cpus $cpus"* ]]
  # Under strict that is no plan.
  run "$planner" plan --config "$config" --format=wire --strict=yes --ranks=$((cpus + 1))
  [ "$status" -eq 1 ]
  [[ $output == "error CPUs of ranks $cpus are not on this machine"*"[not-applied; "* ]]
  printf 'strict=yes\n' >> "$config"
  run "$planner" plan --config "$config" --format=wire --ranks=$((cpus + 1))
  [ "$status" -eq 1 ]
  run "$planner" plan --config "$config" --format=wire --strict=no --ranks=$((cpus + 1))
  [ "$status" -eq 0 ]
}
