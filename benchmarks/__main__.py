"""Run all measurements; the exit status says whether all bounds are kept."""

from benchmarks import augmentation, memory, steps

results = [part.main() for part in (steps, augmentation, memory)]
raise SystemExit(0 if all(results) else 1)
