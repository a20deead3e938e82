#!/usr/bin/env bats
# Every parser under libFuzzer, FUZZ_SECONDS [5] each, from known inputs of its kind. `make fuzz`
# runs them longer.

setup_file() {
  found=$TL_BUILD/tests/fuzz/found
  mkdir -p "$found"
  export found
}

setup() {
  program=$TL_BUILD/tests/fuzz/fuzz
  [ -x "$program" ] || skip "not built: configure found no clang++ with libFuzzer"
  corpus=$BATS_TEST_TMPDIR/corpus
  mkdir "$corpus"
}

# The given files, as inputs of distinct names.
add_seeds() {
  local file
  for file; do [ ! -f "$file" ] || cp "$file" "$corpus/$(sha1sum "$file" | cut -d' ' -f1)"; done
}

run_target() {
  add_seeds "$TL_SOURCE/tests/fuzz/seeds/$1"/*
  TL_FUZZ=$1 "$program" -max_total_time="${FUZZ_SECONDS:-5}" -max_len="${2:-4096}" -timeout=30 -rss_limit_mb=4096 \
    -seed=1 -artifact_prefix="$found/$1-" "$corpus" > "$BATS_TEST_TMPDIR/log" 2>&1 ||
    { tail -n 60 "$BATS_TEST_TMPDIR/log"; echo "the input is in $found"; return 1; }
  # It really ran: the seeds alone are executed first.
  grep -E '^Done [1-9][0-9]* runs' "$BATS_TEST_TMPDIR/log"
}

@test "topology files of every kind, and a plan for what they describe" {
  add_seeds "$TL_SOURCE"/tests/data/*.xml "$TL_SOURCE"/tests/lab/topologies/*.xml
  if [ -n "${TL_SHARED:-}" ]; then
    # Larger ones would be cut, and are no topologies then.
    while read -r file; do add_seeds "$file"; done < <(
      find "$TL_SHARED/topologies" \( -name '*.xml' -o -name '*.txt' \) -size -48k | sort)
  fi
  run_target topology 65536
}

@test "the planner's answer" { run_target answer 16384; }
@test "options, variables and srun's words" { run_target options; }
@test "gpu-bind.conf, by the planner and by the plugin" { run_target config; }
@test "host lists" { run_target hosts 1024; }
@test "lists of CPUs and of memory nodes" { run_target lists 1024; }
@test "reports of ranks, and plans as JSON" { run_target facts 16384; }
@test "headers of safetensors files" { run_target safetensors 4096; }
