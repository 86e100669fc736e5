#!/usr/bin/env bash
# Runs bitnet-gpu on this machine. Usage: run.sh [STEP]...
#   doctor     driver, devices, PTX levels, every kernel against the CPU
#   generate   the demo model on the CPU and on the GPU: the same text
#   tests      the GPU tests (arguments in TEST_ARGS)
#   sanitizer  the kernels' GPU tests under compute-sanitizer, each by itself, two generated cases
#              each (TOOLS; SANITIZER_FILTER: tests to run or skip; SANITIZER_JOBS: so many at a time;
#              SANITIZER_LIMIT: seconds for one; SANITIZER_ARGS: more options of the tool;
#              SANITIZER_RUNS: a file with lines `TOOL TEST`, those alone and in its order;
#              BITNET_TEST_CASES)
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

# sanitize TOOL TEST: one test under one tool; says in one line how it ended.
sanitize() {
    local log=$here/logs/sanitizer/$1/${2//::/.}.log start=$SECONDS code verdict=clean more=
    # It keeps too few of the barriers of a kernel whose blocks all run at once, and ends the launch with 719. With very
    # many it has no memory for them, says so, and checks nothing.
    [ "$1" = synccheck ] && more="--num-cuda-barriers 4096"
    mkdir -p "${log%/*}"
    # shellcheck disable=SC2086
    (cd host && exec timeout "$SANITIZER_LIMIT" "$SANITIZER" --tool "$1" $more ${SANITIZER_ARGS:-} --error-exitcode 9 \
        "$bin/gpu-tests" --exact "$2" --test-threads 1) >"$log" 2>&1 &
    # `timeout` passes a signal on to all that it started; nothing else reaches those.
    trap "kill $! 2>/dev/null; exit 143" TERM INT
    wait $!
    code=$?
    # The tool must have attached and come to its end, and the test must have run under it.
    grep -q '^========= COMPUTE-SANITIZER' "$log" || verdict="the tool did not attach"
    if grep -q 'terminated before first instrumented API call' "$log"; then
        verdict="clean, nothing was launched"
    else
        grep -Eq '^========= (ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards)' "$log" || verdict="no clean summary"
        [ $code -eq 0 ] || verdict="exit code $code"
        [ $code -eq 124 ] && verdict="stopped after $SANITIZER_LIMIT s"
    fi
    grep -q 'Internal Sanitizer Error\|Detected overflow of tracked' "$log" && verdict="the tool did not see everything"
    grep -q '^test result: ok\. 1 passed' "$log" || verdict="the test did not pass: $verdict"
    echo "$1 $2: $verdict, $((SECONDS - start)) s" | tee -a "$here/logs/sanitizer.log"
}

sanitizer() {
    local summary=$here/logs/sanitizer.log total clean
    # Left out: a test that faults on purpose, and what takes hours under the tools: a soak, a product of hours, and
    # a search that launches, thousands of times, what the other tests launch once. The few cases also make texts and draws short.
    local filter=${SANITIZER_FILTER:---skip driver:: --skip memory:: --skip soak --skip the_largest_k --skip what_is_tuned}
    if ! SANITIZER=$(find_sanitizer); then
        echo "no compute-sanitizer: put it on PATH or set CUDA_HOME"
        return 1
    fi
    export here bin SANITIZER SANITIZER_LIMIT=${SANITIZER_LIMIT:-600} BITNET_TEST_CASES=${BITNET_TEST_CASES:-2}
    export -f sanitize
    local runs=${SANITIZER_RUNS:-$here/logs/sanitizer-runs.txt}
    if [ -z "${SANITIZER_RUNS:-}" ]; then
        # shellcheck disable=SC2086
        local tests=$(cd host && "$bin/gpu-tests" --list --format terse $filter | sed -n 's/: test$//p')
        for tool in ${TOOLS:-memcheck racecheck initcheck synccheck}; do
            for test in $tests; do echo "$tool $test"; done
        done >"$runs"
    fi
    # In the background, so that a signal is taken at once: xargs hands it on to its commands.
    : >"$summary"
    xargs -a "$runs" -P "${SANITIZER_JOBS:-4}" -L 1 bash -c 'sanitize "$0" "$1"' &
    trap "kill $! 2>/dev/null; pkill -TERM -P $! 2>/dev/null; exit 143" TERM INT
    wait $!
    trap - TERM INT
    total=$(wc -l <"$summary")
    clean=$(grep -c ': clean, ' "$summary")
    echo "$clean of $total runs clean"
    [ "$total" -gt 0 ] && [ "$clean" -eq "$total" ]
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
