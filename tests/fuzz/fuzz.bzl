"""fuzz_targets: the two programs that run fuzz targets."""

def fuzz_targets(name, test, deps):
    """Declares libFuzzer's program and an ordinary test over the same targets.

    Args:
      name: libFuzzer's program; needs --config=fuzz, so that `//...` leaves it out.
      test: runs the seeds, and the inputs in the directories seeds and findings.
      deps: libraries that define the tables of fuzz_target.h.
    """
    native.cc_binary(
        name = name,
        testonly = True,
        srcs = [
            "fuzzer.cc",
            "targets.cc",
        ],
        linkopts = ["-fsanitize=fuzzer"],
        tags = ["manual"],
        deps = deps + [
            ":fuzz_target",
            "//third_party:absl",
            "//third_party:gtest_without_main",
            "//third_party:protobuf",
        ],
    )
    native.cc_test(
        name = test,
        size = "medium",
        srcs = [
            "corpus_test.cc",
            "targets.cc",
        ],
        data = native.glob([
            "findings/**",
            "seeds/**",
        ]),
        deps = deps + [
            ":fuzz_target",
            "//third_party:absl",
            "//third_party:gtest",
            "//third_party:protobuf",
        ],
    )
