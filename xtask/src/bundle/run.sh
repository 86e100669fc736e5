#!/usr/bin/env bash
# Runs bitnet-gpu on this machine. Usage: run.sh [STEP]...
#   doctor     driver, devices, PTX levels, every kernel against the CPU
#   generate   the demo model on the CPU and on the GPU: the same text
#   tests      the GPU tests (arguments in TEST_ARGS)
#   sanitizer  the kernels' GPU tests under compute-sanitizer, two generated cases each (TOOLS;
#              SANITIZER_FILTER: tests to run or skip; BITNET_TEST_CASES)
#   bench      the benchmarks (BENCHES: names; arguments in BENCH_ARGS)
# Without a step: doctor generate tests bench. Logs go to logs/, benchmark results to
# benches/results/. The exit code is 0 when every step passed.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
bin=$here/bin
mkdir -p "$here/logs"
cd "$here"
summary=()
failed=0

# finish STEP CODE: remembers how a step ended.
finish() {
    if [ "$2" -eq 0 ]; then summary+=("$1 passed"); else summary+=("$1 FAILED ($2)"); failed=1; fi
}

# logged NAME COMMAND...: runs in the current folder, shows and keeps the output.
logged() {
    local name=$1
    shift
    "$@" 2>&1 | tee "$here/logs/$name.log"
    return "${PIPESTATUS[0]}"
}

device() {
    echo "== device"
    if command -v nvidia-smi >/dev/null; then
        nvidia-smi --query-gpu=index,name,driver_version,memory.total,clocks.max.sm,clocks.max.mem \
            --format=csv | tee "$here/logs/device.log"
    else
        echo "no nvidia-smi" | tee "$here/logs/device.log"
    fi
    uname -srm
}

doctor() {
    logged doctor "$bin/bitnet" doctor
}

generate() {
    local args=(generate --prompt "fn main() {" --max-tokens 64 --seed 1)
    "$bin/bitnet" "${args[@]}" --device cpu >"$here/logs/generate-cpu.txt" || return 1
    "$bin/bitnet" "${args[@]}" --device cuda >"$here/logs/generate-cuda.txt" || return 1
    cat "$here/logs/generate-cuda.txt"
    [ -s "$here/logs/generate-cuda.txt" ] &&
        cmp "$here/logs/generate-cpu.txt" "$here/logs/generate-cuda.txt" &&
        echo "same text on CPU and GPU"
}

tests() {
    # shellcheck disable=SC2086
    (cd host && logged tests "$bin/gpu-tests" ${TEST_ARGS:-}) || return 1
    # A binary that found no test has proved nothing.
    grep -Eq '^test result: ok\. [1-9][0-9]* passed' "$here/logs/tests.log"
}

find_sanitizer() {
    command -v compute-sanitizer && return
    local candidate
    for candidate in "${CUDA_HOME:-/usr/local/cuda}"/bin/compute-sanitizer \
        /usr/local/cuda*/bin/compute-sanitizer /usr/local/cuda*/compute-sanitizer/compute-sanitizer; do
        if [ -x "$candidate" ]; then
            echo "$candidate"
            return
        fi
    done
    return 1
}

sanitizer() {
    local tool sanitizer bad=0
    # Left out: a test that faults on purpose, and what takes hours under the tools. The few cases
    # also make texts and draws short.
    local filter=${SANITIZER_FILTER:---skip driver:: --skip memory:: --skip soak --skip the_largest_k}
    local cases=${BITNET_TEST_CASES:-2}
    if ! sanitizer=$(find_sanitizer); then
        echo "no compute-sanitizer: put it on PATH or set CUDA_HOME"
        return 1
    fi
    for tool in ${TOOLS:-memcheck racecheck initcheck synccheck}; do
        echo "-- $tool"
        # shellcheck disable=SC2086
        (cd host && logged "sanitizer-$tool" env BITNET_TEST_CASES="$cases" "$sanitizer" --tool "$tool" --error-exitcode 9 \
            "$bin/gpu-tests" --test-threads 1 $filter) || bad=1
        # The tool must have attached and come to its end, and tests must have run under it.
        local log=$here/logs/sanitizer-$tool.log
        grep -q '^========= COMPUTE-SANITIZER' "$log" || { echo "$tool did not attach"; bad=1; }
        grep -Eq '^========= (ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards)' "$log" ||
            { echo "$tool has no clean summary"; bad=1; }
        grep -Eq '^test result: ok\. [1-9][0-9]* passed' "$log" || { echo "no test ran"; bad=1; }
    done
    return $bad
}

bench() {
    local name bad=0
    for name in ${BENCHES:-$(cd "$bin" && ls | sed -n 's/^bench-//p')}; do
        echo "-- $name"
        # shellcheck disable=SC2086
        (cd benches && logged "bench-$name" "$bin/bench-$name" --bench ${BENCH_ARGS:-}) || bad=1
    done
    return $bad
}

steps=("$@")
[ ${#steps[@]} -gt 0 ] || steps=(doctor generate tests bench)
for step in "${steps[@]}"; do
    case $step in
    doctor | generate | tests | sanitizer | bench) ;;
    *)
        echo "no step \`$step\`; there are doctor generate tests sanitizer bench" >&2
        exit 2
        ;;
    esac
done
device
for step in "${steps[@]}"; do
    echo "== $step"
    "$step"
    finish "$step" $?
done
echo "== summary"
printf '%s\n' "${summary[@]}"
exit $failed
