// libFuzzer's program. tools/fuzz.sh runs it; by hand:
//
//   fuzzer --list                         the targets, one line each: name, longest input, sources
//   fuzzer --write-seeds=NAME DIRECTORY      writes the encoders' seeds, one file each
//   fuzzer --target=NAME [libFuzzer's arguments]
#include <google/protobuf/stubs/logging.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "tests/fuzz/fuzz_target.h"

namespace sluice::fuzz {
namespace {

// libFuzzer calls a function without further arguments, so the target is a global.
bool (*chosen)(absl::string_view) = nullptr;

const FuzzTarget& Named(const std::vector<FuzzTarget>& all, absl::string_view name) {
  for (const FuzzTarget& target : all) {
    if (name == target.name) return target;
  }
  std::fprintf(stderr, "fuzzer: no target \"%s\"; --list names them\n", std::string(name).c_str());
  std::exit(2);
}

[[noreturn]] void WriteSeeds(const FuzzTarget& target, const std::string& directory) {
  int number = 0;
  if (target.seeds != nullptr) {
    for (const std::string& seed : target.seeds()) {
      std::ofstream(absl::StrCat(directory, "/made-", number++), std::ios::binary) << seed;
    }
  }
  std::exit(0);
}

void Initialize(int argc, char** argv) {
  // The log quotes peers' text, which would be endless.
  google::protobuf::SetLogHandler(nullptr);
  // The test worlds of the state machines report failures through GoogleTest. With this flag a
  // failure throws; no code catches the exception, so it ends the process by SIGABRT, which
  // libFuzzer takes as a finding.
  testing::GTEST_FLAG(throw_on_failure) = true;
  const std::vector<FuzzTarget> all = AllTargets();
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument = argv[i];
    if (argument == "--list") {
      for (const FuzzTarget& target : all) {
        std::printf("%s\t%zu\t%s\n", target.name, target.max_bytes, target.sources);
      }
      std::exit(0);
    }
    if (absl::ConsumePrefix(&argument, "--write-seeds=") && i + 1 < argc) {
      WriteSeeds(Named(all, argument), argv[i + 1]);
    }
    if (absl::ConsumePrefix(&argument, "--target=")) chosen = Named(all, argument).run;
  }
  if (chosen != nullptr) return;
  std::fprintf(stderr, "fuzzer: --target=NAME is missing; --list names the targets\n");
  std::exit(2);
}

}  // namespace
}  // namespace sluice::fuzz

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  sluice::fuzz::Initialize(*argc, *argv);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // -1 would keep the input out of the corpus, but an input that is refused in a new way is worth
  // keeping.
  (void)sluice::fuzz::chosen({reinterpret_cast<const char*>(data), size});
  return 0;
}
