#!/usr/bin/env bats
# What gpu_bind.so shows to, and expects of, the programs that load it. A symbol that is missing there
# kills slurmd and srun, and it cannot be found at link time: the spank_* symbols live in them.

bats_require_minimum_version 1.5.0

setup() {
  so=$TL_BUILD/spank/.libs/gpu_bind.so
  [ -e "$so" ] || skip "gpu_bind.so was not built"
  ! grep -q '^TL_LDFLAGS = .*-fsanitize' "$TL_BUILD/Makefile" || skip "built with sanitizers"
  command -v nm > /dev/null || skip "nm is not installed"
}

@test "exports the plugin's name and hooks, and nothing else" {
  run nm -D --defined-only "$so"
  other=$(awk '{ print $NF }' <<< "$output" | sed 's/@.*//' |
    grep -vxE 'plugin_(name|type|version)|spank_plugin_version|slurm_spank_[a-z_]+' || true)
  echo "$other"
  [ -z "$other" ]
  for name in plugin_name plugin_type plugin_version slurm_spank_init slurm_spank_init_post_opt \
    slurm_spank_local_user_init slurm_spank_user_init slurm_spank_task_init; do
    grep -qw "$name" <<< "$output"
  done
}

@test "needs of Slurm what every release since 22.05 has, and of the rest only the C library" {
  undefined=$(nm -D --undefined-only "$so" | awk '{ print $NF }')
  of_slurm=$(grep -v @ <<< "$undefined" |
    grep -vxE '__gmon_start__|_ITM_(de)?registerTMCloneTable' | sort)
  allowed="slurm_error slurm_info slurm_spank_log spank_context spank_get_item spank_getenv
    spank_option_register spank_remote spank_setenv spank_unsetenv"
  [ "$of_slurm" = "$(tr -s ' ' '\n' <<< "$allowed" | sort)" ]
  other=$(grep @ <<< "$undefined" | grep -v '@GLIBC_' || true)
  echo "$other"
  [ -z "$other" ]
}

@test "calls nothing that allocates, starts threads, loads libraries or asks the name service" {
  forbidden=$(nm -D --undefined-only "$so" | awk '{ print $NF }' | sed 's/@.*//' |
    grep -xE '(m|c|re|aligned_)alloc|free|strn?dup|asprintf|fopen|popen|system|dl(open|sym)|pthread_create|(get(pw|gr)(nam|uid|gid|ent)|getgrouplist|initgroups|getaddrinfo)(_r)?|syslog|openlog' ||
    true)
  echo "$forbidden"
  [ -z "$forbidden" ]
}

@test "links the C library only" {
  needed=$(readelf -d "$so" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | grep -vE '^(libc\.so|ld-linux)' || true)
  echo "$needed"
  [ -z "$needed" ]
}

@test "is bound when it is loaded, with relocations read-only and no executable stack" {
  readelf -dW "$so" | grep -E 'FLAGS_1.*NOW'
  readelf -lW "$so" | grep GNU_RELRO
  readelf -lW "$so" | grep GNU_STACK
  run ! grep -E 'GNU_STACK.* RWE ' <(readelf -lW "$so")
}

@test "is built for the Slurm that is installed" {
  command -v slurmd > /dev/null || skip "slurmd is not installed"
  release=$(slurmd -V | sed -n 's/^slurm[^ ]* \([0-9]*\)\.\([0-9]*\).*/\1 \2/p')
  read -r major minor <<< "$release"
  # slurm_version.h: major in bits 16 to 23, minor in 8 to 15.
  address=$(nm -D "$so" | awk '$3 == "plugin_version" { print $1 }')
  word=$(objdump -s -j .rodata --start-address=0x"$address" --stop-address=$((16#$address + 4)) "$so" |
    awk 'END { print $2 }')
  [ "${word:4:2}" = "$(printf %02x "$((10#$major))")" ]
  [ "${word:2:2}" = "$(printf %02x "$((10#$minor))")" ]
}
