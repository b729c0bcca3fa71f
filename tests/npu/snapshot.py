"""Write the committed snapshots of op schemas again.

    .venv-npu/bin/python tests/npu/snapshot.py npu            # all ops of the torch_npu that is installed
    python tests/npu/snapshot.py _C_ascend WHEEL              # those that we call, out of a vllm-ascend wheel

The first needs the libraries of CANN, or stand-ins for them, on LD_LIBRARY_PATH. The second reads the schemas
from the strings of the compiled extension and runs nothing. Schemas are facts about interfaces; no code of
either package is copied.
"""

import json
import re
import sys
import zipfile
from pathlib import Path

DATA = Path(__file__).parent / "data"
CALLED = ("npu_hc_pre", "npu_hc_post", "npu_sparse_attn_sharedkv", "npu_sparse_attn_sharedkv_metadata")


def registered() -> dict[str, str]:
    """Schemas of everything that torch_npu registers in namespace npu."""
    import torch
    import torch_npu  # noqa: F401 - registers its ops

    found = {}
    for schema in torch._C._jit_get_all_schemas():
        if schema.name.startswith("npu::"):
            found[schema.name + (f".{schema.overload_name}" if schema.overload_name else "")] = str(schema)
    return dict(sorted(found.items()))


def in_wheel(wheel: Path) -> dict[str, str]:
    """Schemas in the strings of the wheel's compiled extension."""
    with zipfile.ZipFile(wheel) as files:
        (name,) = (n for n in files.namelist() if re.search(r"vllm_ascend_C[^/]*\.so$", n))
        text = files.read(name).decode("latin-1")
    found = {}
    for op in CALLED:
        schemas = set(re.findall(rf"\x00({op}\([^\x00]*\) -> [^\x00]+)\x00", text))
        assert len(schemas) == 1, f"{op}: {sorted(schemas)}"
        found[f"_C_ascend::{op}"] = "_C_ascend::" + " ".join(schemas.pop().split())
    return found


def write(namespace: str, source: str, schemas: dict[str, str]) -> None:
    text = json.dumps({"source": source, "schemas": schemas}, indent=0)
    (DATA / f"{namespace}_schemas.json").write_text(text + "\n")
    print(f"{len(schemas)} schemas of {source}")


if __name__ == "__main__":
    if sys.argv[1] == "npu":
        import importlib.metadata

        write("npu", f"torch-npu {importlib.metadata.version('torch-npu')}", registered())
    else:
        wheel = Path(sys.argv[2])
        write("_C_ascend", "-".join(wheel.name.split("-")[:2]).replace("_", "-"), in_wheel(wheel))
