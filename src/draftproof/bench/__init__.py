"""Measuring: cost curves and speeds, with where each figure comes from.

`prompts`     what is measured with
`curve`       milliseconds per pass
`speed`       modes side by side, prompt by prompt
`modes`       the modes of `bench speed`
`bootstrap`   the interval of a speed-up
`provenance`  code, machine, versions and models beside every figure
`memo`        a model that remembers its logits, for many short runs
"""
