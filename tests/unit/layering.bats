#!/usr/bin/env bats
# The house rules that a compiler does not check.

setup() {
  cd "${TL_SOURCE:-$BATS_TEST_DIRNAME/../..}" || return
}

sources() { find lib spank launcher tests -name '*.h' -o -name '*.cc' -o -name '*.cu'; }

# Prints what FOLDERs include (the part before the first slash) beyond ALLOWED: file: folder.
# usage: strangers "ALLOWED..." FOLDER
strangers() {
  grep -rnoE --include='*.h' --include='*.cc' --include='*.cu' '^#include "[a-z]+/' "$2" |
    awk -F'[:"/]' -v allowed=" $1 " '{
      file = $0; sub(/:#include.*/, "", file)
      into = $0; sub(/.*"/, "", into); sub(/\/$/, "", into)
      if (!index(allowed, " " into " ")) print file ": includes " into "/"
    }'
}

# Each folder of a chain may include itself and what stands to its left.
check_chain() {
  local left=base folder path found=
  for folder; do
    left="$left $folder"
    path=lib/$folder
    [ -d "$path" ] || path=$folder
    found+=$(strangers "$left" "$path")
  done
  echo "$found"
  [ -z "$found" ]
}

# Headers whose name matches PATTERN are included below the given folders only.
only_below() {
  local pattern=$1 found
  shift
  found=$(sources | xargs grep -nE "^#include <($pattern)" | grep -vE "^($(tr ' ' '|' <<< "$*"))" || true)
  echo "$found"
  [ -z "$found" ]
}

@test "base includes nothing else of ours" {
  check_chain
  [ -z "$(strangers base lib/base)" ]
}

@test "topo -> bind -> env -> spank: includes point left" {
  check_chain topo bind env spank
}

@test "boot -> comm -> ops -> model -> data -> optim -> ckpt -> train -> launcher: includes point left" {
  check_chain boot comm ops model data optim ckpt train launcher
}

@test "each outside interface has one folder" {
  only_below 'slurm/' spank/ tests/
  only_below 'pmix' lib/boot/ tests/
  only_below 'hwloc' lib/topo/ tests/unit/topo
  only_below 'cuda' lib/base/cuda/ lib/comm/nccl/ lib/ops/cuda/
  only_below 'nccl' lib/comm/nccl/
  only_below 'gloo/' lib/comm/
  only_below '(oneapi/)?dnnl' lib/ops/
}

@test "every header says so once" {
  missing=$(find lib spank launcher -name '*.h' | xargs grep -L '^#pragma once$' || true)
  echo "$missing"
  [ -z "$missing" ]
}

@test "sources are formatted" {
  # Versions differ in details; this is the one the tree is formatted with.
  [[ $(clang-format --version 2>&1) == *"version 14."* ]] || skip "clang-format 14 is not installed"
  wrong=$(sources | xargs clang-format --dry-run 2>&1 | sed -n 's/:.*: warning: .*//p' | sort -u)
  echo "not formatted: $wrong"
  [ -z "$wrong" ]
}

@test "every file of the repository is in the tarball" {
  [ -d .git ] || [ -f .git ] || skip "not a git work tree"
  command -v git > /dev/null || skip "git is not installed"
  [ -f "$TL_BUILD/Makefile" ] || skip "not configured"
  make -s -C "$TL_BUILD" distdir distdir="$BATS_TEST_TMPDIR/dist" am__remove_distdir=: \
    > "$BATS_TEST_TMPDIR/log" 2>&1 || { cat "$BATS_TEST_TMPDIR/log"; return 1; }
  missing=$(git ls-files | grep -vE '^(\.gitignore|\.ci/)' |
    while read -r file; do [ -e "$BATS_TEST_TMPDIR/dist/$file" ] || echo "$file"; done)
  echo "$missing"
  [ -z "$missing" ]
}
