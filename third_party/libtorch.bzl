"""Chooses the LibTorch of @libtorch, by the environment variable LIBTORCH.

  unset or "system"   the distribution's (libtorch-dev), headers and libraries under /usr
  "pip"               the one inside the installed Python package `torch`
  "/a/directory"      an unpacked LibTorch: the directory that holds include/ and lib/

The last two may want C++20: add --config=cxx20. Do not use @libtorch directly; depend on
//third_party:torch.
"""

_BUILD = """\
package(default_visibility = ["//visibility:public"])

cc_library(
    name = "torch",
    hdrs = glob({globs}, allow_empty = True),
    includes = {includes},
    defines = {defines},
    linkopts = {linkopts},
)
"""

_PIP_PROGRAM = """\
import importlib.util
spec = importlib.util.find_spec("torch")
print(list(spec.submodule_search_locations)[0] if spec else "")
"""

def _pip_root(ctx):
    python = ctx.which("python3")
    if not python:
        fail("LIBTORCH=pip: there is no python3 on the PATH")
    result = ctx.execute([python, "-c", _PIP_PROGRAM])
    root = result.stdout.strip()
    if result.return_code != 0 or not root:
        fail("LIBTORCH=pip: %s has no package `torch`; install it or unset LIBTORCH" % python)
    return root

def _system(ctx):
    # /usr/include is searched anyway; only the C++ front end's headers lie off that path.
    api = "/usr/include/torch/csrc/api/include"
    if not ctx.path(api).exists:
        # Not an error here: everything that does not link LibTorch builds without it.
        api = None
    if api:
        ctx.symlink(api, "api_include")
    return struct(
        globs = ["api_include/**"],
        includes = ["api_include"],
        defines = [],
        linkopts = ["-ltorch", "-ltorch_cpu", "-lc10"],
    )

def _unpacked(ctx, root):
    for part in ["include/ATen/ATen.h", "lib/libtorch_cpu.so"]:
        if not ctx.path(root + "/" + part).exists:
            fail("LIBTORCH=%s: no %s there; it must be the directory that contains include/ and lib/" %
                 (ctx.os.environ["LIBTORCH"], part))

    # Some releases bring Protobuf's headers, of another version than the system's. They are left out here, because the
    # compiler, which runs without a sandbox, would also find headers that no target lists.
    for entry in ctx.path(root + "/include").readdir():
        if entry.basename != "google":
            ctx.symlink(entry, "include/" + entry.basename)
    lib = root + "/lib"

    # Libraries are opened at run time only when something names them; a CUDA build registers its
    # kernels from libtorch_cuda.so, which no symbol of ours refers to.
    libraries = ["-ltorch", "-ltorch_cpu", "-lc10"]
    if ctx.path(lib + "/libtorch_cuda.so").exists:
        libraries = ["-Wl,--no-as-needed", "-ltorch_cuda", "-lc10_cuda"] + libraries + ["-Wl,--as-needed"]

        # CUDA's own libraries, other packages, are needed only where a program runs.
        libraries.append("-Wl,--allow-shlib-undefined")
    return struct(
        globs = ["include/**"],
        includes = ["include", "include/torch/csrc/api/include"],
        defines = [],
        linkopts = ["-L" + lib, "-Wl,-rpath," + lib] + libraries,
    )

def _libtorch_impl(ctx):
    choice = ctx.os.environ.get("LIBTORCH", "")
    if choice in ["", "system"]:
        found = _system(ctx)
    elif choice == "pip":
        found = _unpacked(ctx, _pip_root(ctx))
    elif choice.startswith("/"):
        found = _unpacked(ctx, choice)
    else:
        fail("LIBTORCH=%s: must be unset, \"system\", \"pip\" or an absolute path" % choice)
    ctx.file("BUILD", _BUILD.format(
        globs = repr(found.globs),
        includes = repr(found.includes),
        defines = repr(found.defines),
        linkopts = repr(found.linkopts),
    ))

libtorch_repository = repository_rule(
    implementation = _libtorch_impl,
    environ = ["LIBTORCH"],
    configure = True,
    local = True,
)
