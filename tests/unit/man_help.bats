#!/usr/bin/env bats
# Every page is there and well-formed, and says of options and defaults what --help says.

pages="train-launch.1 train-launch-checkpoint.1 train-checkpoint.5 train-launch.conf.5 gpu-bind.1 gpu-bind.conf.5 gpu-bind-spank.8"

setup() {
  command -v mandoc > /dev/null || skip "mandoc is not installed"
  man=${TL_SOURCE:-$BATS_TEST_DIRNAME/../..}/man
  PATH=$TL_BUILD/launcher:$TL_BUILD/spank:$PATH
}

page() { mandoc -T ascii -O width=1000 "$man/$1" | sed 's/.\x08//g'; }

# A section or subsection of a page, without its title: section PAGE 'TITLE'.
section() { page "$1" | awk -v t="$2" '/^[^ ]|^   [^ ]/ { on = ($0 ~ "^ *" t "$"); next } on'; }

# "NAME DEFAULT" of each option in a help text on standard input, "-" where there is none. Defaults
# are written "(=x)" after the option or "[x]" at the end of what is said about it.
of_help() {
  awk '
    function flush(   d) {
      if (name == "") return
      d = "-"
      # An option that may stand alone has what that means before it: "[=arg(=yes)] (=no)".
      if (match(text, / \(=[^)]*\)/)) d = substr(text, RSTART + 3, RLENGTH - 4)
      else if (match(text, / \[[^]]*\]$/)) d = substr(text, RSTART + 2, RLENGTH - 3)
      # A long path is broken anywhere.
      if (d ~ /^\//) gsub(/ /, "", d)
      if (name != "--help" && name != "--version") print name, d
      name = ""
    }
    /^ +--[a-z]/ { flush(); name = $1; text = $0; next }
    /^ +[^ ]/ { if (name != "") { sub(/^ +/, ""); text = text " " $0 } next }
    { flush() }
    END { flush() }' | sed -E 's/ \/.*(\/slurm\/.*)/ SYSCONFDIR\1/; s/ *$//' | sort
}

# The same of a page's part: the default stands after the option, "= x", or as " [x]" in the text.
of_page() {
  awk '
    function flush(   d) {
      if (name == "") return
      d = "-"
      if (match(head, / = [^ ]+/)) d = substr(head, RSTART + 3, RLENGTH - 3)
      else if (match(text, / \[[^]]*\]/)) d = substr(text, RSTART + 2, RLENGTH - 3)
      if (name != "--help" && name != "--version") print name, d
      name = ""
    }
    /^     --[a-z]/ { flush(); name = $1; head = text = $0; next }
    /^      +[^ ]/ { if (name != "") text = text " " $0 }
    END { flush() }' | sort
}

# The same of a configuration page: keys below "Section NAME".
of_conf_page() {
  page train-launch.conf.5 | awk '
    /^[^ ]/ { on = 0 }
    /^DESCRIPTION/ { on = 1 }
    /^   [^ ]/ { section = $1 == "Section" ? $2 "." : "" }
    on && /^     [a-z][a-z0-9-]* =/ { print "--" section $1, $3 == "" || $0 ~ /=  / ? "-" : $3 }' |
    sort
}

same() {
  [ -n "$1" ]
  diff <(echo "$1") <(echo "$2")
}

# Whether the pages of other packages are there is the machine's matter.
@test "every page is there and mandoc finds nothing to say about it" {
  for name in $pages; do
    [ -e "$man/$name" ] || { echo "no $name"; return 1; }
    said=$(mandoc -T lint "$man/$name" 2>&1 | grep -vE 'manual not found|outdated mandoc.db' || true)
    echo "$said"
    [ -z "$said" ]
  done
}

@test "every page is installed" {
  make -s -C "$TL_BUILD" install-man DESTDIR="$BATS_TEST_TMPDIR" mandir=/man > /dev/null
  for name in $pages; do
    [ -e "$BATS_TEST_TMPDIR/man/man${name##*.}/$name" ] || { echo "$name is not"; return 1; }
  done
}

@test "gpu-bind(1) lists the options of gpu-bind --help" {
  same "$(gpu-bind --help | of_help)" "$(section gpu-bind.1 Options | of_page)"
}

@test "train-launch(1) lists the options of its commands" {
  for command in generate report; do
    same "$(train-launch $command --help | of_help)" \
      "$(section train-launch.1 "Options of $command" | of_page)"
  done
}

@test "train-launch-checkpoint(1) lists the commands and options of train-launch checkpoint" {
  commands=$(train-launch checkpoint --help | awk '/^  [a-z]/ { print $1 }' | sort)
  same "$commands" "$(page train-launch-checkpoint.1 |
    sed -n '/^SYNOPSIS/,/^DESC/s/^ *train-launch checkpoint \([a-z][a-z]*\).*/\1/p' | sort)"
  for command in $commands; do
    same "$(train-launch checkpoint "$command" --help | of_help)" \
      "$(section train-launch-checkpoint.1 "Options of $command" | of_page)"
  done
}

@test "train-launch(1) and --help list the same commands" {
  same "$(train-launch --help | awk '/^  [a-z]/ { print $1 }' | sort -u)" \
    "$(page train-launch.1 | sed -n '/^SYNOPSIS/,/^DESC/s/^ *train-launch \([a-z][a-z]*\).*/\1/p' |
      sort -u)"
}

@test "train-launch.conf(5) lists the options of train-launch train --help" {
  same "$(train-launch train --help | of_help)" \
    "$({ of_conf_page; section train-launch.1 "Options of train" | of_page; } | sort)"
}

@test "gpu-bind.conf(5) and gpu-bind-spank(8) have the defaults of gpu-bind" {
  for name in policy visible cpu mem nic env report strict; do
    default=$(gpu-bind --help | of_help | sed -n "s/^--$name //p")
    [ -n "$default" ]
    echo "$name: $default"
    section gpu-bind.conf.5 Keys | awk -v n="$name" '/^     [^ ]/ { on = $1 == n } on' |
      grep -qE "(^| )$default \(the default\)"
    section gpu-bind-spank.8 Options | awk -v n="--gpu-bind-$name=" '
      /^     [^ ]/ { on = index($1, n) == 1 } on' |
      grep -qE "^ +$default +.*\(the default\)"
  done
}
