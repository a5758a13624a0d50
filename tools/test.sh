#!/usr/bin/env bash
# Installs missing packages, builds everything, and runs all checks and tests.
#
#   tools/test.sh [--tier TIER]... [--config CONFIG] [--base REV] [--no-install]
#
# The tiers, in this order:
#   verify       tools/verify.sh: formatting, dependencies, lint
#   unit         every test that is not under //tests, and the inputs of //tests/fuzz
#   simulation   //tests/simulation: whole jobs on a simulated clock, network and disk; and //tests/protocol:
#                exhaustive search on small models of the protocol
#   integration  the rest of //tests: real processes on this machine
#   cluster      //tests/cluster: a real Kubernetes in network namespaces, built once per machine while the earlier tiers run
#   fuzz         tools/fuzz.sh: every parser of external input, one minute in total; each target is one case. Built while
#                the earlier tiers run
#
#   --tier TIER      only this one (may be given several times)
#   --config CONFIG  a configuration of .bazelrc, such as asan-ubsan or tsan. The system's LibTorch is
#                    not instrumented, so a sanitizer leaves out the targets that link it, and verify,
#                    whose result does not depend on it
#   --base REV       the revision with which verify compares, see tools/verify.sh
#   --no-install     do not look for missing packages
#
# SLUICE_PYTHON names another Python for those tests of the Python package that need torch, numpy or
# gRPC, if the system's Python does not have them; the output lists the modules of each interpreter.
#
# Tags of a test target name its requirements on the machine (requires-root, requires-netns,
# requires-cgroups, requires-cluster, requires-cluster-nodes); if one is missing, the target is
# skipped and counts as one skipped case. A tier in which nothing can run is skipped with its
# reason. With CI=true, skipping a tier that this machine can run is a failure.
#
# Programs start without the libraries that LibTorch is linked with but does not use (images/torch_stand_ins.sh), as in
# the images: they start in half the time.
#
# The last line is "N passed, N failed, N skipped", of test cases; a failed check of verify and a
# target that did not build count as one failed each. The exit status is 0 if nothing failed.
set -euo pipefail
# shellcheck source=tools/common.sh
source "$(dirname "$0")/common.sh"

readonly TIERS=(verify unit simulation integration cluster fuzz)

passed=0 failed=0 skipped=0
config=()
sanitizer=false
build_failed=false
base=
stand_ins= # the directory of libraries that LibTorch does not use; empty: none

# The result of each tier; printed together at the end.
declare -A verdicts
# The processes that build Kubernetes and the fuzzer while other tiers run.
cluster_build=
fuzz_build=

indent() { sed -u 's/^/  /'; }

# The Bazel query for the tests of a tier.
tests_of() {
  local query
  case $1 in
    unit) query='(tests(//...) except filter("^//tests[/:]", tests(//...))) union tests(//tests/fuzz/...)' ;;
    simulation) query='filter("^//tests/(simulation|protocol)[/:]", tests(//...))' ;;
    integration) query='filter("^//tests[/:]", tests(//...)) except filter("^//tests/(simulation|protocol|fuzz|cluster)[/:]", tests(//...))' ;;
    cluster) query='filter("^//tests/cluster[/:]", tests(//...))' ;;
  esac
  query="($query) except attr(tags, \"[\\[ ]manual[,\\]]\", tests(//...))"
  if $sanitizer; then query="($query) except rdeps(//..., //third_party:torch)"; fi
  printf '%s' "$query"
}

# Prints the requirement of a tag that this machine does not meet; nothing if it meets all.
lacks() {
  case $1 in
    requires-root) [[ $(id -u) == 0 ]] || echo "not root" ;;
    requires-netns)
      unshare --net true 2>/dev/null && command -v ip >/dev/null ||
        echo "cannot make network namespaces" ;;
    requires-cgroups)
      [[ -w /sys/fs/cgroup || -w /sys/fs/cgroup/memory ]] || echo "cannot write to cgroups" ;;
    requires-cluster) tests/cluster/available.sh 2>&1 >/dev/null | head -n 1 || true ;;
    requires-cluster-nodes) tests/cluster/available.sh --nodes 2>&1 >/dev/null | head -n 1 || true ;;
  esac
}

# Prints the interpreter with which the Python package is tested, and its modules.
say_python() {
  local python module has=() lacks=()
  for python in /usr/bin/python3 ${SLUICE_PYTHON:+"$SLUICE_PYTHON"}; do
    has=() lacks=()
    for module in numpy grpc google.protobuf torch; do
      if "$python" -c "import $module" 2>/dev/null; then has+=("$module"); else lacks+=("$module"); fi
    done
    say "python: $python has ${has[*]:-nothing}${lacks:+, but not ${lacks[*]}}"
  done
  [[ -n ${SLUICE_PYTHON:-} || " ${lacks[*]} " != *" torch "* ]] ||
    say "python: tests with torch are skipped; SLUICE_PYTHON=<an interpreter that has it> runs them"
}

run_verify() {
  local arguments=() log counts
  log=$work/verify.log
  [[ -z $base ]] || arguments=(--base "$base")
  tools/verify.sh "${arguments[@]}" 2>&1 | tee "$log" | indent || true
  counts=$(tail -n 1 "$log")
  if [[ $counts =~ ^verify:\ ([0-9]+)\ ok,\ ([0-9]+)\ failed,\ ([0-9]+)\ skipped$ ]]; then
    failed=$((failed + BASH_REMATCH[2]))
    verdicts[verify]="${counts#verify: } (checks)"
  else
    failed=$((failed + 1))
    verdicts[verify]="FAILED: verify.sh ended without a result"
  fi
}

run_fuzz() {
  local log counts reason built=true
  reason=$(tools/fuzz.sh --check 2>&1) || {
    if [[ ${CI:-} == true ]]; then
      failed=$((failed + 1)) verdicts[fuzz]="FAILED: $reason"
      say "fuzz: ${verdicts[fuzz]}"
    else
      skip_tier fuzz "$reason"
    fi
    return
  }
  wait_for "$fuzz_build" "$work/fuzz-build.log" || built=false
  fuzz_build=
  if ! $built; then
    failed=$((failed + 1)) verdicts[fuzz]="FAILED: the fuzzer did not build"
    return
  fi
  log=$work/fuzz.log
  # --fresh, so that a commit's result does not depend on earlier runs on this machine.
  tools/fuzz.sh --fresh --fuzzer "$(tail -n 1 "$work/fuzz-build.log")" 2>&1 | tee "$log" | indent || true
  counts=$(tail -n 1 "$log")
  if [[ $counts =~ ^fuzz:\ ([0-9]+)\ passed,\ ([0-9]+)\ failed$ ]]; then
    passed=$((passed + BASH_REMATCH[1])) failed=$((failed + BASH_REMATCH[2]))
    verdicts[fuzz]="${counts#fuzz: } (targets)"
  else
    failed=$((failed + 1))
    verdicts[fuzz]="FAILED: fuzz.sh ended without a result"
  fi
}

# Moves the targets with a tag from $work/TIER.run to $work/TIER.TAG.
take_out() {
  local tier=$1 tag=$2
  bazel_query "attr(tags, \"[\\[ ]${tag}[,\\]]\", set($(tr '\n' ' ' <"$work/$tier.run")))" \
    >"$work/$tier.$tag" 2>/dev/null || true
  grep -vxFf "$work/$tier.$tag" "$work/$tier.run" >"$work/$tier.rest" || true
  mv "$work/$tier.rest" "$work/$tier.run"
}

# Takes what this machine cannot run out of $work/TIER.run, and counts it.
leave_out_impossible() {
  local tier=$1 tag reason target
  for tag in requires-root requires-netns requires-cgroups requires-cluster requires-cluster-nodes; do
    reason=$(lacks "$tag")
    [[ -n $reason && -s $work/$tier.run ]] || continue
    take_out "$tier" "$tag"
    while IFS= read -r target; do
      echo "  skipped $target: $reason ($tag)"
      skipped=$((skipped + 1))
    done <"$work/$tier.$tag"
  done
}

run_tests() {
  local tier=$1 before status=0 counts cluster=()
  # A package that does not load is a failure, but the other packages still run.
  bazel_query --keep_going "$(tests_of "$tier")" >"$work/$tier.all" 2>"$work/$tier.errors" || {
    grep -E '^ERROR' "$work/$tier.errors" | indent || true
    failed=$((failed + 1))
    verdicts[$tier]="FAILED: a BUILD file does not load; "
  }
  if [[ ! -s $work/$tier.all ]]; then
    skip_tier "$tier" "there are no tests of this tier"
    return
  fi
  before=$skipped
  cp "$work/$tier.all" "$work/$tier.run"
  leave_out_impossible "$tier"
  if [[ ! -s $work/$tier.run ]]; then
    verdicts[$tier]+="skipped: this machine can run none of its $((skipped - before)) targets"
    return
  fi

  if [[ $tier == cluster ]]; then
    end_cluster_build || {
      say "cluster: FAILED: Kubernetes could not be built; the tests that need it do not run"
      verdicts[cluster]="FAILED: Kubernetes could not be built; "
      failed=$((failed + 1))
      take_out cluster requires-cluster
      take_out cluster requires-cluster-nodes
      [[ -s $work/cluster.run ]] || return 0
    }
    # Bazel's tests have no HOME.
    cluster=(--test_env=CLUSTER_CACHE="${CLUSTER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice/cluster}")
  fi
  # Their processes wait for timers and for each other: a test of the integration tier uses a third of a processor, one of
  # the cluster tier half of one.
  local jobs=()
  if [[ $tier == integration || $tier == cluster ]]; then
    jobs=(--jobs="$((2 * $(nproc)))" --local_cpu_resources="$((2 * $(nproc)))")
  fi
  local libraries=()
  if [[ -n $stand_ins ]]; then libraries=(--test_env=LD_LIBRARY_PATH="$stand_ins"); fi
  # A developer's second run repeats nothing; a run of CI is one run of every test.
  local fresh=()
  if [[ ${CI:-} == true ]]; then fresh=(--nocache_test_results); fi
  quiet_bazel test "${config[@]}" "${cluster[@]}" "${jobs[@]}" "${libraries[@]}" "${fresh[@]}" --keep_going --test_summary=none \
    --build_event_json_file="$work/$tier.events" --target_pattern_file="$work/$tier.run" 2>&1 |
    indent || status=$?
  counts=$(python3 tools/test_results.py "$work/$tier.events" "$work/$tier.run" | tee "$work/$tier.cases" | tail -n 1)
  sed '$d' "$work/$tier.cases"
  local p f s
  read -r p f s <<<"$counts"
  # A failure of Bazel itself counts, whatever the test results are.
  if ((status != 0 && f == 0)); then
    echo "  FAILED: bazel ended with status $status"
    f=1
  fi
  passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
  verdicts[$tier]+="$p passed, $f failed, $((skipped - before)) skipped"
}

# The same directory each time, or tests that passed would run again. Files that are there are not written again: another
# run may use them.
make_stand_ins() {
  local directory=${XDG_CACHE_HOME:-$HOME/.cache}/sluice/torch-stand-ins
  if $sanitizer; then return; fi
  if images/torch_stand_ins.sh "$work/stand-ins" >"$work/stand-ins.log" 2>&1; then
    mkdir -p "$directory"
    cp -n "$work/stand-ins"/* "$directory"
    stand_ins=$directory
  else
    indent <"$work/stand-ins.log"
    say "tests: start with all libraries of LibTorch, which takes longer"
  fi
}

# Runs a command in the background at the lowest priority, and sets `background` to its process.
in_background() { # LOG COMMAND...
  # setsid: the scheduler may weigh groups of processes (autogroup(7)), and then only a group's priority counts.
  # shellcheck disable=SC2016 # expanded by the inner shell
  setsid nice -n 19 bash -c 'echo 19 2>/dev/null >"/proc/$$/autogroup"; exec "$@"' background "${@:2}" >"$1" 2>&1 &
  background=$!
}

# Prints the log of a background process, from its beginning to its end, and returns its exit status.
wait_for() { # PROCESS LOG
  (
    echo 0 >"/proc/$1/autogroup"
    renice -n 0 -g "$1"
  ) >/dev/null 2>&1 || true # it has ended, or the user may not raise a priority: then it continues unchanged
  tail -n +1 -f --pid="$1" "$2" | indent
  wait "$1"
}

# Kubernetes takes 11 minutes to build beside the tests.
begin_cluster_build() {
  if ! tests/cluster/available.sh >/dev/null 2>&1 || tests/cluster/build.sh --check >/dev/null 2>&1; then return 0; fi
  say "cluster: building Kubernetes in the background"
  in_background "$work/cluster-build.log" tests/cluster/build.sh
  cluster_build=$background
}

end_cluster_build() {
  if [[ -z $cluster_build ]]; then
    tests/cluster/build.sh 2>&1 | indent
    return
  fi
  local status=0
  wait_for "$cluster_build" "$work/cluster-build.log" || status=$?
  cluster_build=
  return $status
}

# The fuzzer is compiled with sanitizers, apart from everything else: after Kubernetes, because each of the two leaves no
# processor idle. It has a Bazel of its own, because one runs one command at a time.
begin_fuzz_build() {
  tools/fuzz.sh --check >/dev/null 2>&1 || return 0
  export SLUICE_FUZZ_OUTPUT_BASE
  SLUICE_FUZZ_OUTPUT_BASE=$(bazel info --ui_event_filters=-info output_base 2>/dev/null)-fuzz
  say "fuzz: building the fuzzer in the background"
  # shellcheck disable=SC2016 # expanded by the inner shell
  in_background "$work/fuzz-build.log" bash -c '[[ -z $1 ]] || tail -f --pid="$1" /dev/null
    exec tools/fuzz.sh --build' fuzz "$cluster_build"
  fuzz_build=$background
}

clean_up() {
  local build
  for build in $cluster_build $fuzz_build; do
    kill -- "-$build" 2>/dev/null || true # it may have ended in the meantime
  done
  rm -rf "$work"
}

skip_tier() {
  local tier=$1 reason=$2
  verdicts[$tier]+="skipped: $reason"
  say "$tier: skipped: $reason"
}

# A green run must not leave out tests that could have run.
left_out() {
  local tier=$1
  if [[ $tier == verify ]] && $sanitizer; then
    skip_tier "$tier" "the same as without a sanitizer"
    return
  fi
  if [[ $tier == fuzz ]] && $sanitizer; then
    skip_tier "$tier" "it has sanitizers of its own"
    return
  fi
  if [[ $tier == cluster ]] && $sanitizer; then
    skip_tier "$tier" "its containers have the ordinary programs"
    return
  fi
  if [[ ${CI:-} != true ]]; then
    skip_tier "$tier" "not asked for"
    return
  fi
  failed=$((failed + 1))
  verdicts[$tier]="FAILED: left out although this machine can run it (CI=true)"
  say "$tier: ${verdicts[$tier]}"
}

build() {
  local pattern=$work/build.targets query='//...'
  if $sanitizer; then query='//... except rdeps(//..., //third_party:torch)'; fi
  targets_to_build "$query" >"$pattern"
  # Otherwise a target that fails to build and that no test needs would go unnoticed.
  quiet_bazel build "${config[@]}" --keep_going --target_pattern_file="$pattern" 2>&1 |
    indent || {
    build_failed=true
    say "build: FAILED"
  }
}

main() {
  local wanted=() tier began install=true
  while (($#)); do
    case $1 in
      --tier)
        [[ " ${TIERS[*]} " == *" ${2:-} "* ]] || die "--tier must be one of ${TIERS[*]}, not '${2:-}'"
        wanted+=("$2") && shift ;;
      --config)
        config=("--config=${2:?--config needs a name}")
        [[ $2 == *san* ]] && sanitizer=true
        shift ;;
      --base) base=${2:?--base needs a revision} && shift ;;
      --no-install) install=false ;;
      -h | --help) usage && exit 0 ;;
      *) die "unknown argument '$1' (--help lists the arguments)" ;;
    esac
    shift
  done
  if ((${#wanted[@]} == 0)); then
    wanted=("${TIERS[@]}")
    if $sanitizer; then wanted=(unit simulation integration); fi
  fi
  cd "$(repository_root)"
  work=$(mktemp -d)
  trap clean_up EXIT

  if $install; then
    say "install: missing packages"
    tools/install_dependencies.sh | indent
  fi
  remove_foreign_links
  if [[ ${wanted[*]} != verify ]]; then
    began=$SECONDS
    say "build: everything (a first build takes several minutes)"
    build
    say "build: took $((SECONDS - began)) s"
    say_python
    make_stand_ins
  fi
  if [[ " ${wanted[*]} " == *" cluster "* ]]; then begin_cluster_build; fi
  if [[ " ${wanted[*]} " == *" fuzz "* ]]; then begin_fuzz_build; fi
  for tier in "${TIERS[@]}"; do
    if [[ " ${wanted[*]} " != *" $tier "* ]]; then
      left_out "$tier"
      continue
    fi
    began=$SECONDS
    verdicts[$tier]=
    say "$tier: begins"
    case $tier in
      verify) run_verify ;;
      fuzz) run_fuzz ;;
      *) run_tests "$tier" ;;
    esac
    say "$tier: took $((SECONDS - began)) s"
  done

  # Tests that did not build are already counted; programs are not.
  if $build_failed && ((failed == 0)); then failed=1; fi
  say "everything took $((SECONDS / 60)) min $((SECONDS % 60)) s"
  for tier in "${TIERS[@]}"; do printf '  %-12s %s\n' "$tier" "${verdicts[$tier]}"; done
  echo "$passed passed, $failed failed, $skipped skipped"
  ((failed == 0))
}

main "$@"
