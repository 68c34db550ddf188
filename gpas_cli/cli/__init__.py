"""The face: one small file per command. Parse, call one function, print. Nothing heavy is imported at the top."""
