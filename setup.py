"""The list of compiled modules and their flags; everything else about the build is in pyproject.toml."""

import sys
from pathlib import Path

import numpy as np
from Cython.Build import cythonize
from setuptools import Extension, setup

KERNELS = Path("src/cyconv/kernels")
MODULES = ("_openmp", "_geometry", "_direct", "_gemm")

# gnu11 rather than c11: the latter turns floating-point contraction off.
COMPILE_FLAGS = {
    "linux": (["-O3", "-std=gnu11", "-fopenmp"], ["-fopenmp", "-Wl,--strip-all"]),
    "darwin": (["-O3", "-std=gnu11", "-Xpreprocessor", "-fopenmp"], ["-lomp"]),
    "win32": (["/O2", "/openmp:llvm"], []),
}
compile_flags, link_flags = COMPILE_FLAGS[sys.platform]

extensions = [
    Extension(
        f"cyconv.kernels.{name}",
        [str(KERNELS / f"{name}.pyx")],
        include_dirs=[np.get_include(), str(KERNELS)],
        define_macros=[("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION")],
        depends=[str(path) for path in sorted(KERNELS.glob("*.h"))],
        extra_compile_args=compile_flags,
        extra_link_args=link_flags,
    )
    for name in MODULES
]

setup(
    ext_modules=cythonize(
        extensions,
        include_path=["src"],
        compiler_directives={
            "language_level": 3,
            "boundscheck": False,
            "wraparound": False,
            "initializedcheck": False,
            "cdivision": True,
            "freethreading_compatible": True,
        },
    )
)
