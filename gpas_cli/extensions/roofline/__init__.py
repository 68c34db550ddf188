"""The extension `roofline`: where the time of an update goes, beside what this device can do, for `gpas bench`.

kernels   the times by kind of kernel, and the bounds of each kind
"""

from gpas_cli.extension import Extension

EXTENSION = Extension(name="roofline", parts={"roofline": "gpas_cli.extensions.roofline.kernels:examine"})
