#!/usr/bin/env bats
# The harness itself, on a tree of its own: what it counts, and when it says that all is well.

setup() {
  tree=$BATS_TEST_TMPDIR/tree
  mkdir -p "$tree/tests/unit" "$tree/build/tests/unit"
  cp "$BATS_TEST_DIRNAME/../run" "$tree/tests/run"
  export TL_BUILD=$tree/build TL_LAB=$tree/build/lab
}

# program NAME: standard input becomes a shell script in the place of a doctest program.
program() {
  { echo '#!/bin/sh'; cat; } > "$TL_BUILD/tests/unit/$1_test"
  chmod +x "$TL_BUILD/tests/unit/$1_test"
}

script() { cat > "$tree/tests/unit/$1.bats"; }

summary() { echo "echo '[doctest] test cases: $(($1 + $2)) | $1 passed | $2 failed | 0 skipped'"; }

last_line() { echo "${lines[-1]}"; }

@test "programs and scripts are counted together" {
  summary 3 0 | program one
  summary 2 0 | program two
  script three <<< $'@test "a" { true; }\n@test "b" { true; }'
  run "$tree/tests/run" quick
  [ "$status" = 0 ]
  [ "$(last_line)" = "7 passed, 0 failed" ]
}

@test "a failed case and a failed test are failures, shown with what they printed" {
  { summary 3 1; echo 'echo the reason; exit 1'; } | program one
  script two <<< $'@test "good" { true; }\n@test "bad" { echo another reason; false; }'
  run "$tree/tests/run" quick
  [ "$status" = 1 ]
  [ "$(last_line)" = "4 passed, 2 failed" ]
  [[ $output == *"the reason"* ]]
  [[ $output == *"another reason"* ]]
}

@test "a program that dies has failed, before or after its summary" {
  echo 'kill -SEGV $$' | program one
  { summary 3 0; echo 'kill -ABRT $$'; } | program two
  run "$tree/tests/run" quick
  [ "$status" = 1 ]
  [ "$(last_line)" = "3 passed, 2 failed" ]
}

@test "a script that breaks has failed" {
  script one <<< $'setup_file() { false; }\n@test "a" { true; }'
  script two <<< $'@test "never closed" {'
  run "$tree/tests/run" quick
  [ "$status" = 1 ]
  [[ $(last_line) == "0 passed, "* ]]
  [[ $(last_line) != *" 0 failed"* ]]
}

@test "what was skipped is listed with its reason and is not passed" {
  { echo "echo 'x.cc(1): MESSAGE: skipped: no data'"; summary 2 0; } | program one
  script two <<< $'@test "b" { skip "no cluster"; }'
  run "$tree/tests/run" quick
  [ "$status" = 0 ]
  [ "$(last_line)" = "1 passed, 0 failed, 2 skipped" ]
  [[ $output == *"skipped one_test: no data"* ]]
  [[ $output == *"skipped two.bats: b: no cluster"* ]]
}

@test "a filter picks files, and picking none is a failure" {
  summary 3 0 | program one
  summary 2 0 | program two
  run "$tree/tests/run" quick two
  [ "$status" = 0 ]
  [ "$(last_line)" = "2 passed, 0 failed" ]
  run "$tree/tests/run" quick three
  [ "$status" = 1 ]
  [ "$(last_line)" = "0 passed, 0 failed" ]
}
