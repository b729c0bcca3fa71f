"""Build the fake CANN libraries against an installed torch-npu wheel: python build.py FOLDER

torch_npu's libraries need CANN's; here these are one C file that works (`fake_acl.c`) and, for every other C
symbol that they leave undefined, a function that does nothing, returns 0 and counts its calls. Needs gcc, nm.
"""

import re
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIBRARIES = ("hccl", "acl_op_compiler", "ge_runner", "graph", "acl_tdt_channel", "runtime")
# Looked up by name at run time, and fatal if they are missing.
BY_NAME = (
    "aclSetCompileopt",
    "aclrtCtxSetSysParamOpt",
    "aclrtGetSysParamOpt",
    "aclrtSetDeviceSatMode",
    "aclrtSetOpExecuteTimeOut",
)

NO_OPS = """\
static long calls[{count}];
static const char *names[{count}] = {{{names}}};
int fake_acl_no_ops(void) {{ return {count}; }}
long fake_acl_no_op_calls(int i) {{ return calls[i]; }}
const char *fake_acl_no_op_name(int i) {{ return names[i]; }}
{functions}
"""


def symbols(library: Path, which: str) -> set[str]:
    """Names of a library's undefined ("undefined") or own ("defined") dynamic symbols."""
    listed = subprocess.run(
        ["nm", "-D", f"--{which}-only", library], check=True, capture_output=True, text=True
    ).stdout
    return {line.split()[-1].partition("@")[0] for line in listed.splitlines()}


def compile_library(target: Path, *arguments: str | Path) -> None:
    """One call of gcc."""
    flags = ["-std=gnu11", "-O1", "-fPIC", "-shared", "-Wall", "-Wextra", "-Wno-unused-parameter"]
    subprocess.run(["gcc", *flags, f"-Wl,-soname,{target.name}", "-o", target, *arguments], check=True)


def build(out: Path) -> None:
    """Make the libraries in `out`."""
    out.mkdir(parents=True, exist_ok=True)
    package = Path(str(distribution("torch-npu").locate_file("torch_npu")))
    headers = package / "include/third_party/acl/inc"
    main = out / "libascendcl.so"
    include = ("-isystem", headers)
    compile_library(main, *include, HERE / "fake_acl.c", "-lpthread")
    needed = set(BY_NAME)
    torch_npu = (package / "lib/libtorch_npu.so", package / "lib/libtensorpipe.so", *package.glob("_C.*.so"))
    for library in torch_npu:
        needed |= {name for name in symbols(library, "undefined") if re.match(r"acl|rt[A-Z]|Msprof", name)}
    missing = sorted(needed - symbols(main, "defined"))
    source = out / "no_ops.c"
    source.write_text(
        NO_OPS.format(
            count=len(missing),
            names=", ".join(f'"{name}"' for name in missing),
            functions="\n".join(
                f"int {name}(void) {{ calls[{i}]++; return 0; }}" for i, name in enumerate(missing)
            ),
        )
    )
    compile_library(main, *include, HERE / "fake_acl.c", source, "-lpthread")
    nothing = out / "nothing.c"
    nothing.write_text("")
    for name in LIBRARIES:
        # torch_npu looks some names up in these: the functions of the one library have to be found there.
        linked = ("-Wl,--no-as-needed", f"-L{out}", "-lascendcl", "-Wl,-rpath,$ORIGIN")
        compile_library(out / f"lib{name}.so", nothing, *linked)


if __name__ == "__main__":
    build(Path(sys.argv[1]).resolve())
