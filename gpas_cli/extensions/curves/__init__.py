"""The extension `curves`: what runs have recorded over updates or layers, as series to draw: one for each method."""

from gpas_cli.extension import Extension

EXTENSION = Extension(name="curves")
