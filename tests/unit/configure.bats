#!/usr/bin/env bats
# What configure makes of an nvcc, whatever it is: a toolkit of this test's own stands behind it.

setup_file() {
  source=${TL_SOURCE:-$(realpath "$BATS_TEST_DIRNAME/../..")}
  [ -x "$source/configure" ] || skip "no configure beside the sources"
  export source toolkit=$BATS_FILE_TMPDIR/toolkit cache=$BATS_FILE_TMPDIR/config.cache
  mkdir -p "$toolkit"/{bin,include,lib}
  cat > "$toolkit/include/cuda_runtime_api.h" <<'END'
typedef enum { cudaSuccess } cudaError_t;
extern "C" cudaError_t cudaGetDeviceCount(int* count);
END
  echo 'int cudaGetDeviceCount(int* n) { *n = 0; return 0; }' |
    gcc -x c -c -o "$toolkit/lib/runtime.o" -
  ar rc "$toolkit/lib/libcudart_static.a" "$toolkit/lib/runtime.o"
  cat > "$toolkit/bin/nvcc" <<END
#!/bin/sh
echo '#\$ INCLUDES="-I$toolkit/include"  ' >&2
echo '#\$ LIBRARIES=  "-L$toolkit/lib"' >&2
END
  chmod +x "$toolkit/bin/nvcc"
  # What has nothing to do with CUDA is found out once.
  mkdir "$BATS_FILE_TMPDIR/first"
  cd "$BATS_FILE_TMPDIR/first" || return
  "$source/configure" -q --cache-file="$cache" CXX="${CXX:-g++}" --with-cuda=no
}

# configured ARG...: configure's summary, in a folder of its own.
configured() {
  mkdir -p "$BATS_TEST_TMPDIR/build"
  cd "$BATS_TEST_TMPDIR/build" || return
  cp "$cache" cache
  run "$source/configure" -q --cache-file=cache CXX="${CXX:-g++}" "$@"
}

uses_toolkit() {
  [ "$status" = 0 ]
  [[ $output == *"CUDA ............. yes"* ]]
  grep -q "^CUDA_CFLAGS = .*-I$toolkit/include" Makefile
  grep -q "^CUDA_LIBS = .*-L$toolkit/lib " Makefile
  # This nvcc answers questions, and compiles nothing.
  [[ $output == *"CUDA operations .. no: nvcc compiles no C++20 here"* ]]
  [[ $output == *"NCCL ............. no: CUDA operations are not built"* ]]
}

@test "the toolkit is where nvcc says, not beside a script or a link that leads to it" {
  mkdir "$BATS_TEST_TMPDIR/bin"
  printf '#!/bin/sh\nexec %s "$@"\n' "$toolkit/bin/nvcc" > "$BATS_TEST_TMPDIR/bin/nvcc"
  chmod +x "$BATS_TEST_TMPDIR/bin/nvcc"
  PATH=$BATS_TEST_TMPDIR/bin:$PATH configured
  uses_toolkit
}

@test "an nvcc without headers or libraries that work turns CUDA off, or is an error if asked for" {
  mkdir -p "$BATS_TEST_TMPDIR/broken/bin"
  printf '#!/bin/sh\nexit 1\n' > "$BATS_TEST_TMPDIR/broken/bin/nvcc"
  chmod +x "$BATS_TEST_TMPDIR/broken/bin/nvcc"
  PATH=$BATS_TEST_TMPDIR/broken/bin:$PATH configured
  [ "$status" = 0 ]
  [[ $output == *"CUDA ............. no: "*"not usable"* ]]
  configured --with-cuda="$BATS_TEST_TMPDIR/broken"
  [ "$status" != 0 ]
  [[ $output == *"error: CUDA: "* ]]
}

@test "a toolkit that is named is the one that is used, or none" {
  configured --with-cuda="$toolkit"
  uses_toolkit
  configured --with-cuda=no
  [[ $output == *"CUDA ............. no: --with-cuda=no"* ]]
  configured --with-cuda=/nonexistent
  [ "$status" != 0 ]
  [[ $output == *"nvcc not found"* ]]
}
