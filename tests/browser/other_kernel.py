"""``python -m tests.browser.other_kernel -f FILE``: a kernel that says it speaks R, for the panel to meet one."""

from __future__ import annotations

from ipykernel.kernelapp import IPKernelApp
from ipykernel.kernelbase import Kernel


class OtherKernel(Kernel):
    implementation = "stand-in"
    implementation_version = "1"
    banner = "It runs nothing."

    def __init__(self, **given: object) -> None:
        super().__init__(**given)  # type: ignore[no-untyped-call]  # ipykernel's is not typed
        self.language_info = {"name": "R", "mimetype": "text/x-rsrc", "file_extension": ".R"}

    async def do_execute(self, *_: object, **__: object) -> dict[str, object]:
        return {"status": "ok", "execution_count": 1, "payload": [], "user_expressions": {}}


if __name__ == "__main__":
    IPKernelApp.launch_instance(kernel_class=OtherKernel)
