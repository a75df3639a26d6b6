"""Compile the package's C sources on installation; where that fails, the package does without."""

import importlib.util
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeHook(BuildHookInterface):  # type: ignore[type-arg]
    """The library lies beside its sources, in a wheel for this platform and any Python."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile before files are collected; `version` is standard or editable."""
        del version
        build = _build_module(Path(self.root))
        failed = build.compiled()
        if failed is not None:
            self.app.display_warning(f"securevfl: products will be SEAL's, not native: {failed}")
            return
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"
        build_data["artifacts"].append(
            build.LIBRARY.relative_to(Path(self.root).resolve()).as_posix()
        )


def _build_module(root: Path) -> ModuleType:
    """The package's own module, which is not installed yet."""
    path = root / "securevfl" / "crypto" / "native" / "build.py"
    spec = importlib.util.spec_from_file_location("build", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is missing")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
