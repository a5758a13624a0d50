#!/usr/bin/env bash
# Runs the fuzz targets of //tests/fuzz: libFuzzer with AddressSanitizer and UndefinedBehaviorSanitizer.
#
#   tools/fuzz.sh [--seconds N] [--target NAME]... [--fresh] [--jobs N] [--fuzzer FILE]
#   tools/fuzz.sh --coverage [--target NAME]...
#   tools/fuzz.sh --target NAME --input FILE
#   tools/fuzz.sh --list | --check | --build
#
#   --seconds N    total time, divided among the targets (60); one target runs per processor
#   --target NAME  only this one (may be given several times)
#   --fresh        start from the seeds only and keep nothing, so that machines of equal speed try the same inputs
#   --jobs N       targets at a time
#   --fuzzer FILE  run this one, which --build built, instead of building it
#   --coverage     fuzz nothing; print which lines of each parser the existing inputs reach (seeds, past findings,
#                  inputs that earlier runs kept)
#   --input FILE   run this one input, such as a finding
#   --list         print the names of the targets
#   --check        print what is missing on this machine, and fail if anything is
#   --build        only build the fuzzer, and print its path
#
# SLUICE_FUZZ_OUTPUT_BASE names a directory for Bazel, so that the fuzzer can be built beside another build.
#
# Inputs that reach new code are kept in $XDG_CACHE_HOME/sluice/fuzz/corpus/<target>, and findings
# in .../findings/<target>. After fixing a finding, copy its input to tests/fuzz/findings/<target>,
# where //tests/fuzz:corpus_test runs it from then on.
#
# The last line is "fuzz: N passed, N failed", of targets. The exit status is 0 if nothing failed.
set -euo pipefail
# shellcheck source=tools/common.sh
source "$(dirname "$0")/common.sh"

# The limits of time and memory for a single input; the memory is the smallest limit of Sluice's
# processes.
readonly INPUT_SECONDS=20 MEMORY_MIB=2048 ALLOCATION_MIB=512
readonly SEED=1

seconds=60 jobs=$(nproc) fresh=false fuzzer=
wanted=()

lacks() {
  command -v clang++-14 >/dev/null || { echo "clang++-14 is not installed" && return; }
  local program
  program=$(mktemp)
  echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' |
    clang++-14 -x c++ -fsanitize=fuzzer,address,undefined -o "$program" - >/dev/null 2>&1 ||
    echo "clang++-14 has no libFuzzer (package libclang-rt-14-dev)"
  rm -f "$program"
}

# Builds the fuzzer in a configuration, and prints its path.
build_fuzzer() {
  if [[ -n ${SLUICE_FUZZ_OUTPUT_BASE:-} ]]; then
    bazel() { command bazel --output_base="$SLUICE_FUZZ_OUTPUT_BASE" --max_idle_secs=60 "$@"; }
  fi
  quiet_bazel build --config="$1" --symlink_prefix=/ //tests/fuzz:fuzzer >&2 || die "the fuzzer failed to build"
  echo "$(bazel info --config="$1" --ui_event_filters=-info bazel-bin 2>/dev/null)/tests/fuzz/fuzzer"
}

# The read-only input directories of a target.
read_only_inputs() {
  local name=$1 directory
  mkdir -p "$work/made/$name"
  "$fuzzer" --write-seeds="$name" "$work/made/$name"
  echo "$work/made/$name"
  for directory in "tests/fuzz/seeds/$name" "tests/fuzz/findings/$name"; do
    if [[ -d $directory ]]; then echo "$directory"; fi
  done
}

# Runs the fuzzer with libFuzzer's arguments that all runs share.
run_fuzzer() {
  local name=$1
  shift
  "$fuzzer" --target="$name" -seed=$SEED -timeout=$INPUT_SECONDS -rss_limit_mb=$MEMORY_MIB \
    -malloc_limit_mb=$ALLOCATION_MIB -max_len="$(cut -f 2 <(grep -P "^$name\t" "$work/list"))" "$@"
}

# NAME SECONDS: fuzzes one target; writes its table row to $work/NAME.row, everything else to
# $work/NAME.log.
fuzz_one() {
  local name=$1 time=$2 corpus=$cache/corpus/$1 findings=$cache/findings/$1 status=0 directories found
  if $fresh; then corpus=$work/corpus/$name; fi
  mkdir -p "$corpus" "$findings"
  mapfile -t directories < <(read_only_inputs "$name")
  run_fuzzer "$name" -max_total_time="$time" -reload=0 -print_final_stats=1 -artifact_prefix="$findings/" \
    "$corpus" "${directories[@]}" >"$work/$name.log" 2>&1 || status=$?
  awk -v name="$name" -v status=$status '
    / cov: / { for (i = 1; i < NF; ++i) if ($i == "cov:") cov = $(i + 1); else if ($i == "ft:") features = $(i + 1) }
    /^stat::number_of_executed_units:/ { runs = $2 }
    /^stat::average_exec_per_sec:/ { rate = $2 }
    END { printf "  %-18s %11d %9d/s %8d %9d  %s\n", name, runs, rate, cov, features, status ? "FAILED" : "ok" }
  ' "$work/$name.log" >"$work/$name.row"
  if ((status == 0)); then return 0; fi
  found=$(sed -n 's/^artifact_prefix=.*Test unit written to //p' "$work/$name.log" | tail -n 1)
  {
    grep -E -m 3 '^SUMMARY:|: \(.*\) is false$|runtime error:|^==[0-9]+==ERROR' "$work/$name.log" || tail -n 5 "$work/$name.log"
    if [[ -n $found ]]; then
      echo "input: $found"
      echo "reproduce: tools/fuzz.sh --target $name --input $found"
      # Small enough to copy from a log.
      if (($(stat -c %s "$found") <= 1024)); then echo "base64: $(base64 -w 0 "$found")"; fi
    fi
  } | sed 's/^/    /' >>"$work/$name.row"
  return 1
}

fuzz() {
  local name time running=0 failed=0 passed=0 targets=${#wanted[@]}
  if ((jobs > targets)); then jobs=$targets; fi
  time=$((seconds * jobs / targets))
  if ((time < 1)); then time=1; fi
  say "$targets targets, $time s each, $jobs at a time"
  for name in "${wanted[@]}"; do
    if ((running == jobs)); then
      wait -n || true
      running=$((running - 1))
    fi
    (fuzz_one "$name" "$time" || touch "$work/$name.failed") &
    running=$((running + 1))
  done
  wait
  printf '  %-18s %11s %11s %8s %9s\n' target executions "" edges features
  for name in "${wanted[@]}"; do
    cat "$work/$name.row"
    if [[ -e $work/$name.failed ]]; then failed=$((failed + 1)); else passed=$((passed + 1)); fi
  done
  echo "fuzz: $passed passed, $failed failed"
  ((failed == 0))
}

# The lines of each source of each target that the target's own inputs reach.
coverage() {
  local name directories sources
  printf '  %-18s %-52s %6s %s\n' target source lines reached
  for name in "${wanted[@]}"; do
    mapfile -t directories < <(read_only_inputs "$name")
    mkdir -p "$cache/corpus/$name"
    LLVM_PROFILE_FILE=$work/$name.raw run_fuzzer "$name" -runs=0 "$cache/corpus/$name" "${directories[@]}" \
      >"$work/$name.log" 2>&1 || { tail -n 5 "$work/$name.log" && die "$name: an input fails; fuzz it first"; }
    llvm-profdata-14 merge -o "$work/$name.profile" "$work/$name.raw"
    rm "$work/$name.raw"
    read -ra sources <<<"$(cut -f 3 <(grep -P "^$name\t" "$work/list"))"
    ((${#sources[@]})) || continue
    llvm-cov-14 export -summary-only -instr-profile="$work/$name.profile" "$fuzzer" 2>/dev/null |
      python3 -c '
import json
import sys
files = {entry["filename"]: entry["summary"]["lines"] for entry in json.load(sys.stdin)["data"][0]["files"]}
for source in sys.argv[2:]:
    lines = next((summary for name, summary in files.items() if name.endswith("/" + source) or name == source), None)
    if lines is None:
        print("  %-18s %-52s nothing of it is linked" % (sys.argv[1], source))
    else:
        row = (sys.argv[1], source, lines["count"], lines["covered"], lines["percent"])
        print("  %-18s %-52s %6d %6d %5.1f %%" % row)
' "$name" "${sources[@]}"
  done
}

main() {
  local action=fuzz input='' reason
  while (($#)); do
    case $1 in
      --seconds) seconds=${2:?--seconds needs a number} && shift ;;
      --target) wanted+=("${2:?--target needs a name}") && shift ;;
      --jobs) jobs=${2:?--jobs needs a number} && shift ;;
      --fresh) fresh=true ;;
      --fuzzer) fuzzer=$(realpath "${2:?--fuzzer needs a file}") && shift ;;
      --coverage) action=coverage ;;
      --input) action=input input=$(realpath "${2:?--input needs a file}") && shift ;;
      --list) action=list ;;
      --check) action=check ;;
      --build) action=build ;;
      -h | --help) usage && exit 0 ;;
      *) die "unknown argument '$1' (--help lists the arguments)" ;;
    esac
    shift
  done
  [[ $seconds =~ ^[1-9][0-9]{0,6}$ ]] || die "--seconds must be a number of at least 1, not '$seconds'"
  [[ $jobs =~ ^[1-9][0-9]{0,3}$ ]] || die "--jobs must be a number of at least 1, not '$jobs'"
  cd "$(repository_root)"
  reason=$(lacks)
  [[ -z $reason ]] || die "$reason: tools/install_dependencies.sh installs it"
  if [[ $action == check ]]; then exit 0; fi
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  cache=${XDG_CACHE_HOME:-$HOME/.cache}/sluice/fuzz

  local config=fuzz
  if [[ $action == coverage ]]; then config=fuzz-coverage; fi
  [[ -n $fuzzer ]] || fuzzer=$(build_fuzzer $config)
  if [[ $action == build ]]; then echo "$fuzzer" && exit 0; fi
  export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1:check_initialization_order=1
  export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
  export ASAN_SYMBOLIZER_PATH=/usr/lib/llvm-14/bin/llvm-symbolizer
  export UBSAN_SYMBOLIZER_PATH=$ASAN_SYMBOLIZER_PATH
  # A program built for coverage always writes a profile, by default into the current directory.
  export LLVM_PROFILE_FILE=$work/unused.raw
  "$fuzzer" --list >"$work/list"
  local name known
  mapfile -t known < <(cut -f 1 "$work/list")
  for name in "${wanted[@]}"; do
    [[ " ${known[*]} " == *" $name "* ]] || die "no target '$name'; there are: ${known[*]}"
  done
  if ((${#wanted[@]} == 0)); then wanted=("${known[@]}"); fi
  case $action in
    list) printf '%s\n' "${known[@]}" ;;
    input)
      ((${#wanted[@]} == 1)) || die "--input needs one --target"
      run_fuzzer "${wanted[0]}" "$input"
      ;;
    *) $action ;;
  esac
}

main "$@"
