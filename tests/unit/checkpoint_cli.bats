#!/usr/bin/env bats
# train-launch checkpoint on the command line: what it says and the exit code it says it with.

bats_require_minimum_version 1.5.0

setup_file() {
  cd "$BATS_FILE_TMPDIR" || return
  seq 1 4000 > text.txt
  printf '%s\n' '[model]' layers=1 heads=2 width=16 context=16 '[data]' path=text.txt '[train]' \
    steps=3 global-batch=4 eval-every=0 '[checkpoint]' every=1 keep=0 > small.conf
  "$TL_BUILD/launcher/train-launch" train small.conf --run-dir=run > log || { cat log; return 1; }
}

setup() {
  program=$TL_BUILD/launcher/train-launch
  cp -a "$BATS_FILE_TMPDIR"/{run,small.conf,text.txt} "$BATS_TEST_TMPDIR"
  cd "$BATS_TEST_TMPDIR" || return
}

checkpoint() { timeout 60 "$program" checkpoint "$@"; }

# gives CODE TEXT COMMAND...: exits with CODE, says TEXT, and nothing that a terminal would obey.
gives() {
  local code=$1 text=$2
  shift 2
  run checkpoint "$@"
  echo "$* -> $status: $output"
  [ "$status" = "$code" ]
  [[ $output == *"$text"* ]]
  [ "$(tr -d '[:print:]\n' <<< "$output" | wc -c)" = 0 ]
}

# Changes one bit of the byte at OFFSET: flip FILE OFFSET.
flip() {
  local byte
  byte=$(od -An -tu1 -j"$2" -N1 "$1" | tr -d ' ')
  # shellcheck disable=SC2059
  printf "\\x$(printf %x $((byte ^ 1)))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}

@test "list tells each step's state" {
  rm run/step-000000002/VERIFIED
  mv run/step-000000001 run/step-000000001.bad
  mkdir run/.step-000000009.00.tmp run/.trash.00
  run checkpoint list run
  [ "$status" = 0 ]
  [[ ${lines[0]} == STEP*LEVEL*STATE*AGE*SIZE ]]
  grep -qE '^1 +shared +bad ' <<< "$output"
  grep -qE '^2 +shared +committed ' <<< "$output"
  grep -qE '^3 +shared +verified ' <<< "$output"
  grep -qE '^9 +shared +unfinished ' <<< "$output"
  grep -qE '^- +shared +trash ' <<< "$output"
  checkpoint list run --format=json > list.json
  python3 - << 'END' || return
import json
j = json.load(open("list.json"))
assert j["version"] == 1 and j["run"] == "run"
states = [(c["step"], c["state"], c["verified"]) for c in j["checkpoints"]]
assert states == [(1, "bad", False), (2, "committed", False), (3, "verified", True),
                  (9, "unfinished", False), (None, "trash", False)], states
END
}

@test "local checkpoints are listed and verified with their node" {
  rm -r run
  "$program" train small.conf --run-dir=run --checkpoint.local-dir=local --checkpoint.local-every=1
  run checkpoint list run --local-dir=local
  grep -qE '^3 +shared +verified ' <<< "$output"
  grep -qE '^2 +local \([^)]+\) +verified ' <<< "$output"
  gives 0 "/step-000000002: good" verify run --all --local-dir=local
  flip local/*/step-000000002/shard-00000.safetensors 3000
  gives 93 "/step-000000002: DAMAGED" verify run --all --local-dir=local
}

@test "show says what is in a checkpoint" {
  gives 0 "GPT-2 over bytes, 1 layer, 2 heads, width 16, context 16" show run
  [[ $output == *"run/step-000000003"* ]]
  grep -qE '^layer.0.attention.qkv.weight +768 +16 x 48 +m, v, weight' <<< "$output"
  gives 0 "step        2; Adam has counted 2 updates" show run --step=2 --ranges
  grep -qE '^0 +layer.0.attention.qkv.weight +m +0 to 768 +[0-9]+$' <<< "$output"
  checkpoint show run/step-000000001 --format=json > show.json
  python3 - << 'END' || return
import json
j = json.load(open("show.json"))
m = json.load(open("run/step-000000001/MANIFEST.json"))
assert j["digest"] == m["digest"] and j["step"] == 1 and j["samples"] == 4
assert j["config"]["model.width"] == "16"
assert j["tensors"]["embedding.tokens"] == {"elements": 4096, "shape": [256, 16],
                                            "slots": ["m", "v", "weight"]}
assert sorted(r["length"] for r in j["ranges"]) == sorted(r[3] for r in m["runs"])
END
}

@test "verify says good, or where the damage is, and its exit code is stable" {
  gives 0 "run/step-000000003: good, 1 shard" verify run
  flip run/step-000000002/shard-00000.safetensors 5000
  gives 0 "good" verify run
  gives 93 "run/step-000000002/shard-00000.safetensors is damaged: the digest of bytes 0 to" \
    verify run --step=2
  [[ $output == *"/weight elements 0 to "* ]]
  gives 93 "run/step-000000002: DAMAGED" verify run --all
  [[ $output == *"step-000000001: good"* && $output == *"step-000000003: good"* ]]
  flip run/step-000000003/MANIFEST.json 100
  gives 93 "MANIFEST.json is damaged" verify run/step-000000003
  gives 93 "MANIFEST.json is damaged" show run
  rm -r run/step-000000003/MANIFEST.json
  gives 93 "MANIFEST.json" verify run/step-000000003
  checkpoint verify run --all --format=json > verify.json || [ $? = 93 ]
  python3 - << 'END' || return
import json
j = json.load(open("verify.json"))
assert j["good"] is False and [c["good"] for c in j["checkpoints"]] == [True, False, False]
END
}

@test "no bar is drawn where nobody sees it, and one on a terminal" {
  run --separate-stderr checkpoint verify run --all
  [ -z "$stderr" ]
  script -qec "true" /dev/null > /dev/null 2>&1 || skip "script(1) is not there"
  script -qec "$program checkpoint verify run" bar > /dev/null < /dev/null
  grep -q '100 % of' bar
}

@test "gc removes litter, says how much, and takes nothing else" {
  mkdir run/.step-000000009.00.tmp run/.trash.00 away
  head -c 2097152 /dev/zero > run/.step-000000009.00.tmp/shard-00000.safetensors
  touch away/mine
  ln -s "$PWD/away" run/.trash.01
  ln -s "$PWD/away/mine" run/.trash.00/link
  gives 1 "would remove run/.step-000000009.00.tmp: unfinished, 2.0 MiB" gc run --dry-run
  [ -d run/.trash.00 ]
  gives 1 "freed 2.0 MiB in 2 entries" gc run
  [[ $output == *"left run/.trash.01: "* ]]
  [ -e away/mine ] && [ -L run/.trash.01 ] && [ ! -e run/.trash.00 ]
  rm run/.trash.01
  gives 0 "freed 0.0 MiB in 0 entries" gc run
  gives 0 "good" verify run --all
  gives 0 "removed run/step-000000001: beyond --keep" gc run --keep=1
  [ ! -e run/step-000000001 ] && [ -d run/step-000000002 ] && [ -d run/step-000000003 ]
}

@test "gc leaves a run in use alone" {
  mkdir run/.trash.00
  exec 9< run/run.lock
  flock -n 9
  gives 1 "is in use by" gc run
  [ -d run/.trash.00 ]
  exec 9<&-
  gives 0 "removed run/.trash.00" gc run
}

@test "diff says what differs, and by how much, with the exit codes of diff(1)" {
  cp -a run again
  gives 0 "bitwise equal" diff run again
  gives 1 "weight: 16 tensors and " diff run/step-000000002 run
  [[ $output == *"step: 2 and 3"* ]]
  gives 2 "no checkpoint in" diff run .
  # One run stopped at step 2 and one that went on: the same, and then not.
  "$program" train small.conf --run-dir=short --train.steps=2 > log
  gives 0 "bitwise equal" diff short again/step-000000002 --slot=weight
  [[ $output == *"train.steps: 2 and 3"* ]]
  checkpoint export run --output=weights && checkpoint import weights --output=imported
  gives 0 "train.seed: 1337 and nothing" diff run imported --slot=weight
  gives 2 "neither checkpoint has a slot wieght" diff short again --slot=wieght
  checkpoint diff short again --slot=weight --format=json > diff.json || [ $? = 1 ]
  python3 - << 'END' || return
import json
j = json.load(open("diff.json"))
assert j["equal"] is False and j["slots"]["weight"]["differing"] > 0
assert 0 < j["slots"]["weight"]["max_abs"] < 1 and list(j["slots"]) == ["weight"]
END
  flip again/step-000000003/shard-00000.safetensors 5000
  gives 2 "is damaged" diff run again
}

@test "weights go out and come back bitwise, and a run goes on from them" {
  gives 0 "exported run/step-000000003 to hf" export run --output=hf
  [ "$(ls hf)" = "$(printf '%s\n' config.json model.safetensors)" ]
  gives 0 "imported hf as run2/step-000000000" import hf --output=run2
  gives 0 "run2/step-000000000: good" verify run2
  gives 0 "bitwise equal" diff run run2 --slot=weight
  gives 0 "exported" export run2 --output=hf2
  cmp hf/model.safetensors hf2/model.safetensors
  cmp hf/config.json hf2/config.json

  "$program" generate run --tokens=20 --seed=3 > one
  "$program" generate run2 --tokens=20 --seed=3 > two
  cmp one two
  "$program" train small.conf --run-dir=run2 --train.seed=5 > log || { cat log; return 1; }
  grep -q 'continued from run2/step-000000000' log
  [ -d run2/step-000000003 ]
  run "$program" train small.conf --run-dir=run2 --model.heads=1
  [ "$status" = 2 ]

  gives 2 "exists already" export run --output=hf
  echo other > hf/config.json
  gives 0 "exported" export run --output=hf --force
  cmp hf/config.json hf2/config.json
  gives 2 "has checkpoints already" import hf --output=run2
  flip run/step-000000003/shard-00000.safetensors 20000
  gives 93 "is damaged" export run --output=hf3
  [ ! -e hf3 ] && [ "$(find . -maxdepth 1 -name '.*.tmp' -o -name '.trash*' | wc -l)" = 0 ]
}

@test "hostile weights are refused with one line" {
  checkpoint export run --output=hf > /dev/null
  printf '\xff\xff\xff\xff\xff\xff\xff\xff{}' > lies
  printf '\x02\0\0\0\0\0\0\0{}' > none
  head -c 1000 hf/model.safetensors > cut
  sed 's/"shape":\[256,16\]/"shape":[016,16]/' hf/model.safetensors > shape
  sed 's/"dtype":"F32"/"dtype":"X32"/' hf/model.safetensors > dtype
  sed 's/"shape":\[256,16\]/"shape":[NaN,16]/' hf/model.safetensors > nan
  printf 'tensor \e[31m' > noise
  for file in lies none cut shape dtype nan noise /dev/zero run hf/none; do
    run --separate-stderr checkpoint import "$file" --output=new --heads=2
    echo "$file -> $status: $stderr"
    [ "$status" = 2 ]
    [ "${#stderr_lines[@]}" = 1 ]
    [ ! -e new ]
  done
}

# The interpreter that has PyTorch, or skips.
torch_python() {
  local python
  for python in python3 /usr/bin/python3; do
    if "$python" -c 'import torch' 2> /dev/null; then
      torch=$python
      return
    fi
  done
  skip "PyTorch is not installed"
}

@test "PyTorch computes the same logits from what is exported" {
  torch_python
  "$program" train small.conf --run-dir=more --train.steps=40 --optim.lr=0.01 --optim.warmup=5 > log
  checkpoint export more --output=hf
  "$TL_BUILD/tests/unit/logits_probe" more/step-000000040 '123 124 125 126' |
    "$torch" "$TL_SOURCE/tests/data/gpt2_torch.py" logits hf '123 124 125 126'
}

@test "the engine computes the logits that PyTorch does from F32, F16 and BF16 weights of others" {
  torch_python
  "$torch" "$TL_SOURCE/tests/data/gpt2_torch.py" make made
  checkpoint import made --output=from-made
  checkpoint export from-made --output=hf
  "$TL_BUILD/tests/unit/logits_probe" from-made/step-000000000 'some other text' > logits
  for folder in made hf; do
    "$torch" "$TL_SOURCE/tests/data/gpt2_torch.py" logits $folder 'some other text' < logits
  done
}

@test "control characters in names are not obeyed" {
  local evil=$'run/.step-\e[31m\n.tmp'
  mkdir "$evil" $'run/step-000000003.bad.\e[2J'
  printf 'a \e[31mreason' > $'run/step-000000003.bad.\e[2J/WHY'
  gives 0 "unfinished" list run
  gives 0 "?[31m" gc run --dry-run
  gives 93 "does not belong" verify $'run/step-000000003.bad.\e[2J' || true
  gives 2 "?[31m" list $'no\e[31m'
}

@test "wrong usage is one line and exit code 2" {
  for words in "" "foo" "list" "list run more" "show run --step=9" "verify run --step=x" \
    "verify none" "verify ." "gc ." "list run --format=xml" "verify run --all --step=1" \
    "export run" "import none --output=x" "import run" "export none --output=x" "diff run"; do
    # shellcheck disable=SC2086
    run --separate-stderr checkpoint $words
    echo "$words -> $status: $stderr"
    [ "$status" = 2 ]
    [ "${#stderr_lines[@]}" = 1 ]
  done
  # What a script's empty variable names is not the directory that it is in.
  cd run || return
  gives 2 "RUN is empty" list ""
  gives 2 "CHECKPOINT is empty" verify ""
}

@test "every command has a help" {
  for command in $(checkpoint --help | awk '/^  [a-z]/ { print $1 }'); do
    checkpoint "$command" --help | grep -q "^usage: train-launch checkpoint $command "
  done
}
