#!/usr/bin/env bats
# train-launch on the command line and in its pages.

setup() {
  cd "${TL_SOURCE:-$BATS_TEST_DIRNAME/../..}" || return
  launch=$TL_BUILD/launcher/train-launch
  [ -x "$launch" ] || skip "$launch is not built"
}

# Options with their defaults, "--tokens 300", one a line.
options_of_help() {
  "$launch" "$1" --help | sed -nE 's/^  (--[a-z0-9.-]+)( arg)?( \(=(.*)\))?( .*)?$/\1 \4/p' | sed 's/ $//'
}

# Of one part of train-launch(1): .It Fl -tokens Ar number No = 300
options_of_page() {
  sed -n "/^\.Ss Options of $1/,/^\.S[sh] /p" man/train-launch.1 |
    sed -nE 's/^\.It Fl -([a-z-]+)( Ar [a-z]+)?( No = ?(.*))?$/--\1 \4/p' | sed 's/ $//'
}

# Of train-launch.conf(5): .It Cm key No = default, below .Ss Section NAME
keys_of_page() {
  awk '/^\.Ss/ { section = ($2 == "Section") ? $3 "." : "" }
    /^\.It Cm [a-z0-9-]+ No =/ { print "--" section $3 ($6 == "" ? "" : " " $6) }' man/train-launch.conf.5
}

@test "help and train-launch(1) have the same options with the same defaults" {
  for command in generate report; do
    diff <(options_of_help $command | sort) <(options_of_page $command | sort)
    [ -n "$(options_of_help $command)" ]
  done
}

@test "help and train-launch.conf(5) have the same keys with the same defaults" {
  diff <(options_of_help train | sort) <(keys_of_page | sort)
  [ "$(keys_of_page | wc -l)" -gt 25 ]
}

@test "every command of the help text is in train-launch(1)" {
  for command in $("$launch" --help | sed -nE 's/^  ([a-z]+) .*/\1/p'); do
    grep -q "^\.It Cm $command" man/train-launch.1
  done
}

@test "manual pages are clean" {
  command -v mandoc > /dev/null || skip "mandoc is not installed"
  # Whether a page that is referred to is installed depends on the machine.
  run bash -c 'mandoc -Tlint man/train-launch.1 man/train-launch.conf.5 2> /dev/null |
    grep -v "referenced manual not found"'
  echo "$output"
  [ -z "$output" ]
}
