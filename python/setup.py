"""Copies the C library into the wheel, when it was built: `cargo build --release -p bitnet-capi`, or BITNET_LIBRARY=FILE."""

import os
import pathlib
import shutil

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

NAME = "libbitnet_c.so"
CLONE = pathlib.Path(__file__).resolve().parent.parent
LIBRARY = pathlib.Path(os.environ.get("BITNET_LIBRARY") or CLONE / "target/release" / NAME)


class Build(build_py):
    def run(self):
        super().run()
        if LIBRARY.is_file() and not self.editable_mode:
            shutil.copy2(LIBRARY, pathlib.Path(self.build_lib) / "bitnet_gpu" / NAME)


class Wheel(bdist_wheel):
    def get_tag(self):
        # With the library in it a wheel is of one platform, and of any Python.
        python, abi, platform = super().get_tag()
        return (python, abi, self.plat_name.replace("-", "_").replace(".", "_") if LIBRARY.is_file() else platform)


setup(cmdclass={"build_py": Build, "bdist_wheel": Wheel})
