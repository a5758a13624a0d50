"""Precompiled headers: GCC reads the headers of other projects once, not for every source.

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

    # GCC takes NAME.h.gch instead of NAME.h, if both were asked for with the same flags.
    header = ctx.actions.declare_file(ctx.label.name + ".h")
    ctx.actions.expand_template(template = ctx.file.hdr, output = header, substitutions = {})
    compiled = ctx.actions.declare_file(ctx.label.name + ".h.gch")
    variables = cc_common.create_compile_variables(
        feature_configuration = features,
        cc_toolchain = toolchain,
        user_compile_flags = ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts + ctx.attr.copts + ["-x", "c++-header"],
        source_file = ctx.file.hdr.path,
        output_file = compiled.path,
        quote_include_directories = depset(["."]),
        use_pic = True,
    )
    ctx.actions.run(
        executable = cc_common.get_tool_for_action(feature_configuration = features, action_name = ACTION_NAMES.cpp_compile),
        arguments = cc_common.get_memory_inefficient_command_line(
            feature_configuration = features,
            action_name = ACTION_NAMES.cpp_compile,
            variables = variables,
        ),
        env = cc_common.get_environment_variables(
            feature_configuration = features,
            action_name = ACTION_NAMES.cpp_compile,
            variables = variables,
        ),
        inputs = depset([ctx.file.hdr] + ctx.files._headers, transitive = [toolchain.all_files]),
        outputs = [compiled],
        mnemonic = "CppPrecompile",
        progress_message = "Precompiling %{label}".replace("%{label}", str(ctx.label)),
    )
    headers = depset([header, compiled])
    return [
        DefaultInfo(files = headers),
        CcInfo(compilation_context = cc_common.create_compilation_context(headers = headers)),
    ]

precompiled_header = rule(
    implementation = _precompiled_header_impl,
    attrs = {
        "copts": attr.string_list(),
        "hdr": attr.label(allow_single_file = [".h"], mandatory = True),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
        "_headers": attr.label(default = ":library_headers.h", allow_files = True),
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
    if tests:
        return "test"
    if native.package_name().split("/")[0] in ["cli", "operator"]:
        return "small"
    return "library"

def _precompiled(rule, srcs = [], copts = [], deps = [], **kwargs):
    kind = _kind_of(srcs, copts)
    if kind:
        copts = copts + select({
            "//third_party/precompiled:unwanted": [],
            "//conditions:default": ["-Winvalid-pch", "-include", "third_party/precompiled/%s.h" % kind],
        })
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
