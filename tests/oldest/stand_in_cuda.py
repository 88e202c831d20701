"""Write stand-ins for the CUDA libraries that a CUDA build of torch links to, so that it imports without them.

    python tests/oldest/stand_in_cuda.py SITE_PACKAGES

For tests on a machine without a GPU only. The oldest torch that we support exists for x86_64 as a CUDA build whose own
libraries are several gigabytes more. The loader wants each library and each versioned symbol to exist; nothing calls
them without a device. Every symbol of a stand-in returns 100, which is cudaErrorNoDevice, so that
``torch.cuda.is_available()`` is False. Needs gcc and binutils; takes a few seconds. A torch that links to none of these
libraries is left as it is.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

MARK = b"accel_nb stand-in"
LIBRARY = re.compile(r"lib(cu|nccl|nvshmem|nvrtc|nvJit|nvToolsExt|nvperf)")
SYMBOL = re.compile(
    r"(cu[A-Z]|cuda|cublas|cudnn|cusparse|cufft|curand|cusolver|nccl|pnccl|nvshmem|cupti|cuFile|nvtx|__cuda|nvrtc)"
)


def printed_by(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def missing_libraries(libraries: Iterable[Path], present: set[str]) -> list[str]:
    """Sonames of CUDA libraries that `libraries` link to and that are not among `present`."""
    needed = {
        name for library in libraries for name in re.findall(r"NEEDED.*\[(.+?)\]", printed_by("readelf", "-d", library))
    }
    return sorted(name for name in needed - present if LIBRARY.match(name))


def undefined_symbols(libraries: Iterable[Path]) -> dict[str, set[str]]:
    """CUDA symbols that no library of torch defines, by version tag ("" for none)."""
    undefined: set[str] = set()
    defined: set[str] = set()
    for library in libraries:
        for line in printed_by("nm", "-D", library).splitlines():
            match line.split():
                case ["U", symbol]:
                    undefined.add(symbol)
                case [_, _, symbol]:
                    defined.add(symbol.split("@")[0])
    by_version: dict[str, set[str]] = defaultdict(set)
    for symbol in undefined:
        name, _, version = symbol.partition("@")
        if SYMBOL.match(name) and name not in defined:
            by_version[version.lstrip("@")].add(name)
    return by_version


def owners(libraries: Iterable[Path]) -> dict[str, str]:
    """Which soname each symbol version is looked up in, as the libraries' "version needs" sections say."""
    found: dict[str, str] = {}
    for library in libraries:
        soname = ""
        for line in printed_by("readelf", "-V", library).splitlines():
            if match := re.search(r"File: (\S+)", line):
                soname = match.group(1)
            if (match := re.search(r"Name: (\S+)\s+Flags", line)) and soname:
                found.setdefault(match.group(1), soname)
    return found


def build(target: Path, symbols: Mapping[str, set[str]]) -> None:
    """Make the library `target`; every symbol of every version in `symbols` returns 100."""
    labels = "".join(
        f".globl {name}\n.type {name},@function\n{name}:\n" for names in symbols.values() for name in sorted(names)
    )
    source = f'.section .rodata\n.ascii "{MARK.decode()}"\n.text\n{labels}movl $100, %eax\nret\n'
    source += '.section .note.GNU-stack,"",@progbits\n'
    versions = "".join(
        f"{version} {{ global: {' '.join(f'{name};' for name in sorted(names))} }};\n"
        for version, names in symbols.items()
        if version
    )
    with tempfile.TemporaryDirectory() as folder:
        assembly, version_map = Path(folder, "symbols.s"), Path(folder, "versions.map")
        assembly.write_text(source, encoding="ascii")
        command = ["gcc", "-shared", "-nostdlib", "-o", str(target), str(assembly), f"-Wl,-soname,{target.name}"]
        if versions:
            version_map.write_text(versions, encoding="ascii")
            command.append(f"-Wl,--version-script={version_map}")
        subprocess.run(command, check=True)


def main(site_packages: Path) -> None:
    folder = site_packages / "torch" / "lib"
    for path in folder.iterdir():
        if LIBRARY.match(path.name) and path.stat().st_size < 2_000_000 and MARK in path.read_bytes():
            path.unlink()
    libraries = sorted(folder.glob("*.so*"))
    missing = missing_libraries(libraries, {path.name for path in folder.iterdir()})
    symbols, owner = undefined_symbols(libraries), owners(libraries)
    # Symbols without a version are found in any library: the runtime's stand-in takes them, or else the first one.
    unversioned_in = next((name for name in missing if name.startswith("libcudart")), missing[0] if missing else "")
    for soname in missing:
        build(
            folder / soname,
            {
                version: names
                for version, names in symbols.items()
                if owner.get(version) == soname or (not version and soname == unversioned_in)
            },
        )
    print(f"{len(missing)} stand-ins for CUDA libraries in {folder}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
