"""The compiled modules and the flags of each instruction set; pyproject.toml has the rest."""

import os
import platform
import sys
from pathlib import Path

import numpy as np
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

KERNELS = Path("src/cyconv/kernels")
UKERNELS = KERNELS / "ukernel"
MODULES = (
    "_openmp",
    "_memory",
    "_channel_sums",
    "_geometry",
    "_run",
    "_signature",
    "_ukernels",
    "_direct",
    "_gemm",
    "_implicit_gemm",
    "_slide",
    "_channel_lanes",
    "_columns",
    "_pixel_lanes",
    "_winograd",
    "_pooling",
)

# gnu11 rather than c11: the latter turns floating-point contraction off. Kernels look at the bits
# of floating-point numbers, hence no strict aliasing.
COMPILE_FLAGS = {
    "linux": (
        ["-O3", "-g0", "-std=gnu11", "-fno-strict-aliasing", "-fopenmp"],
        ["-fopenmp", "-Wl,--strip-all"],
    ),
    "darwin": (
        ["-O3", "-std=gnu11", "-fno-strict-aliasing", "-Xpreprocessor", "-fopenmp"],
        ["-lomp"],
    ),
    "win32": (["/O2", "/openmp:llvm"], []),
}
compile_flags, link_flags = COMPILE_FLAGS[sys.platform]

# Translation units of their own: <kind>_<name>.c. The baseline is what the compiler targets by
# default, SSE2 on x86-64 and NEON on aarch64.
ISA_FLAGS = {"baseline": []}
if platform.machine().lower() in ("x86_64", "amd64") and sys.platform != "win32":
    ISA_FLAGS["avx2"] = ["-mavx2", "-mfma"]
    ISA_FLAGS["avx512"] = ["-mavx512f", "-mavx512vl", "-mfma", "-mprefer-vector-width=512"]
    compile_flags.append("-DCYCONV_X86")


class BuildExt(build_ext):
    """Compile ukernel_<isa>.c and its like with the flags of that instruction set."""

    def build_extension(self, ext):
        """Compile such sources first and hand the rest to setuptools."""
        sources, ext.sources = ext.sources, []
        for source in sources:
            isa = Path(source).stem.rpartition("_")[2]
            if isa not in ISA_FLAGS:
                ext.sources.append(source)
                continue
            ext.extra_objects += self.compiler.compile(
                [source],
                output_dir=self.build_temp,
                include_dirs=ext.include_dirs,
                extra_postargs=[*ext.extra_compile_args, *ISA_FLAGS[isa]],
                depends=ext.depends,
            )
        super().build_extension(ext)


C_SOURCES = {
    "_ukernels": [
        UKERNELS / "dispatch.c",
        *(UKERNELS / f"{kind}_{isa}.c" for kind in ("ukernel", "winograd") for isa in ISA_FLAGS),
    ],
}
HEADERS = [*KERNELS.glob("*.h"), *UKERNELS.glob("*.h"), *KERNELS.glob("*.pxd")]

extensions = [
    Extension(
        f"cyconv.kernels.{name}",
        [str(path) for path in (KERNELS / f"{name}.pyx", *C_SOURCES.get(name, ()))],
        include_dirs=[np.get_include(), str(KERNELS)],
        define_macros=[("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION")],
        depends=[str(path) for path in sorted(HEADERS)],
        extra_compile_args=compile_flags,
        extra_link_args=link_flags,
    )
    for name in MODULES
]

setup(
    cmdclass={"build_ext": BuildExt},
    options={"build_ext": {"parallel": os.cpu_count()}},
    ext_modules=cythonize(
        extensions,
        include_path=["src"],
        nthreads=os.cpu_count(),
        compiler_directives={
            "language_level": 3,
            "boundscheck": False,
            "wraparound": False,
            "initializedcheck": False,
            "cdivision": True,
            "freethreading_compatible": True,
        },
    ),
)
