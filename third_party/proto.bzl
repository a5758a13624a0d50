"""sluice_proto_library: .proto files to a C++ library, with the system's protoc and gRPC plugin.

    load("//third_party:proto.bzl", "sluice_proto_library")

    sluice_proto_library(
        name = "control_cc_proto",
        srcs = ["control.proto"],
        grpc = True,
        deps = [":common_cc_proto"],
    )

Imports are relative to the repository's root (`import "proto/common.proto";`), and so are the
generated headers (`#include "proto/control.pb.h"`, `"proto/control.grpc.pb.h"`). A dependency is
named by its C++ target, in the same package or another.
"""

load("//third_party/precompiled:precompiled.bzl", "cc_library")

_ProtoFilesInfo = provider(
    doc = "The .proto files that an importer of these needs.",
    fields = {"files": "depset of .proto files, transitive"},
)

def _proto_gen_impl(ctx):
    files = depset(
        direct = ctx.files.srcs,
        transitive = [dep[_ProtoFilesInfo].files for dep in ctx.attr.deps],
    )
    if ctx.attr.outs:
        out_root = ctx.bin_dir.path
        args = ctx.actions.args()
        args.add("--proto_path=.")
        args.add("--cpp_out=" + out_root)
        if ctx.attr.grpc:
            args.add("--grpc_out=" + out_root)
        args.add_all(ctx.files.srcs)
        command = 'protoc "$@"'
        if ctx.attr.grpc:
            command = 'protoc --plugin=protoc-gen-grpc="$(command -v grpc_cpp_plugin)" "$@"'
        ctx.actions.run_shell(
            inputs = files,
            outputs = ctx.outputs.outs,
            command = command,
            arguments = [args],
            mnemonic = "Protoc",
            progress_message = "Generating C++ from %{label}".replace("%{label}", str(ctx.label)),
            use_default_shell_env = True,
        )
    return [
        _ProtoFilesInfo(files = files),
        DefaultInfo(files = depset(ctx.outputs.outs)),
    ]

_proto_gen = rule(
    implementation = _proto_gen_impl,
    attrs = {
        "deps": attr.label_list(providers = [_ProtoFilesInfo]),
        "grpc": attr.bool(),
        "outs": attr.output_list(),
        "srcs": attr.label_list(allow_files = [".proto"]),
    },
)

_GEN_SUFFIX = "_gen"

def _gen_label(label):
    if ":" not in label:
        label = label + ":" + label.split("/")[-1]
    return label + _GEN_SUFFIX

def sluice_proto_library(name, srcs, deps = [], grpc = False, visibility = None, **kwargs):
    """Declares a cc_library of the generated code of .proto files.

    Args:
      name: the C++ library.
      srcs: .proto files of this package.
      deps: sluice_proto_library targets that the files import.
      grpc: whether to generate services as well (`*.grpc.pb.h`).
      visibility: of the library.
      **kwargs: passed to cc_library.
    """
    hdrs = []
    sources = []
    for src in srcs:
        stem = src[:-len(".proto")]
        suffixes = [".pb"] + ([".grpc.pb"] if grpc else [])
        hdrs += [stem + suffix + ".h" for suffix in suffixes]
        sources += [stem + suffix + ".cc" for suffix in suffixes]

    _proto_gen(
        name = name + _GEN_SUFFIX,
        srcs = srcs,
        outs = hdrs + sources,
        grpc = grpc,
        visibility = visibility,
        deps = [_gen_label(dep) for dep in deps],
    )

    runtime = ["//third_party:protobuf"] + (["//third_party:grpc"] if grpc else [])
    cc_library(
        name = name,
        srcs = sources,
        hdrs = hdrs,
        # Warnings in generated code cannot be fixed here.
        copts = ["-w"],
        visibility = visibility,
        deps = deps + runtime,
        **kwargs
    )
