"""Precompiled headers: clang reads the headers of other projects once, not for every source.

tools/build_rules/prelude_bazel puts cc_library, cc_test and cc_binary of this file in place of the rules of these names
in every BUILD file. They include one of the headers of //third_party/precompiled before each source.
"""

load("@bazel_tools//tools/build_defs/cc:action_names.bzl", "ACTION_NAMES")
load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

def _precompiled_header_impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )

    # From standard input to standard output and with a working directory of the same name everywhere, or the paths in
    # the result would depend on where it was made.
    compiled = ctx.actions.declare_file(ctx.label.name + ".pch")
    variables = cc_common.create_compile_variables(
        feature_configuration = features,
        cc_toolchain = toolchain,
        user_compile_flags = ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts + ctx.attr.copts + [
            "-xc++-header",
            "-fpch-instantiate-templates",
            "-Xclang",
            "-fno-pch-timestamp",
            "-working-directory=/proc/self/cwd",
        ],
        source_file = "-",
        output_file = "-",
        use_pic = True,
    )
    compiler = cc_common.get_tool_for_action(feature_configuration = features, action_name = ACTION_NAMES.cpp_compile)
    command = [compiler] + cc_common.get_memory_inefficient_command_line(
        feature_configuration = features,
        action_name = ACTION_NAMES.cpp_compile,
        variables = variables,
    )
    ctx.actions.run_shell(
        command = "cat %s | %s >%s" % (
            " ".join([header.path for header in ctx.files.hdrs]),
            " ".join(["'%s'" % argument for argument in command]),
            compiled.path,
        ),
        env = cc_common.get_environment_variables(
            feature_configuration = features,
            action_name = ACTION_NAMES.cpp_compile,
            variables = variables,
        ),
        inputs = depset(ctx.files.hdrs, transitive = [toolchain.all_files]),
        outputs = [compiled],
        mnemonic = "CppPrecompile",
        progress_message = "Precompiling %s" % ctx.label,
    )
    headers = depset([compiled])
    return [
        DefaultInfo(files = headers),
        CcInfo(compilation_context = cc_common.create_compilation_context(headers = headers)),
    ]

precompiled_header = rule(
    implementation = _precompiled_header_impl,
    attrs = {
        "copts": attr.string_list(),
        "hdrs": attr.label_list(allow_files = [".h"], mandatory = True),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)

def _kind_of(srcs, copts):
    """Which header the sources of a target can share: .bazelrc gives them flags by their names."""
    if [flag for flag in copts if not flag.lower().startswith("-w")]:
        return None
    sources = [src for src in srcs if src.endswith(".cc")] if type(srcs) == "list" else []
    tests = [src for src in sources if src.endswith("_test.cc")]
    if not sources or (tests and len(tests) < len(sources)):
        return None
    package = native.package_name()
    if tests:
        optimized = package.startswith("tests/protocol") or (package == "operator" and tests[0].startswith("operator_"))
        return "library" if optimized else "test"
    if package.split("/")[0] in ["cli", "operator"]:
        return "small"
    return "library"

def _precompiled(rule, srcs = [], copts = [], deps = [], **kwargs):
    kind = _kind_of(srcs, copts)
    header = ["-include-pch", "$(BINDIR)/third_party/precompiled/%s.pch" % kind] if kind else []
    copts = copts + select({
        "//third_party/precompiled:unwanted": [],
        "//conditions:default": ["-Wthread-safety-beta"] + header,
    })
    if kind:
        deps = deps + select({
            "//third_party/precompiled:unwanted": [],
            "//conditions:default": ["//third_party/precompiled:" + kind],
        })
    rule(srcs = srcs, copts = copts, deps = deps, **kwargs)

def cc_library(**kwargs):
    _precompiled(native.cc_library, **kwargs)

def cc_binary(**kwargs):
    _precompiled(native.cc_binary, **kwargs)

def cc_test(**kwargs):
    _precompiled(native.cc_test, **kwargs)
