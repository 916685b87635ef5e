"""Run all measurements; the exit status says whether all bounds are kept."""

from benchmarks import augmentation, corruptions, memory, steps

results = [part.main() for part in (steps, augmentation, memory, corruptions)]
raise SystemExit(0 if all(results) else 1)
