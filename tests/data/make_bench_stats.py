#!/usr/bin/env python3
"""Writes tests/unit/bench_stats_numpy.h: numpy's mean, std and percentiles of a few lists of numbers, the definition that
src/tools/bench_stats.h promises.  Run again only when cases are added: make_bench_stats.py > tests/unit/bench_stats_numpy.h"""
import numpy as np

PERCENTILES = [0, 0.1, 1, 10, 25, 33.3, 50, 66.7, 75, 90, 95, 99, 99.9, 100]
rng = np.random.default_rng(20261130)
cases = {
    "one": np.array([0.125]),
    "two": np.array([0.5, 0.25]),
    "three": np.array([3.0, 1.0, 2.0]),
    "equal": np.full(7, 0.1),
    "ties": np.array([1.0, 2.0, 2.0, 2.0, 3.0, 1.0, 9.0, 9.0]),
    "zeros": np.array([0.0, 0.0, 0.0, 1e-9, 0.0]),
    "spread": np.array([1e-6, 1e-3, 1.0, 1e3, 1e6]),
    "lognormal": rng.lognormal(-3, 1.2, 101).round(9),
    "exponential": rng.exponential(0.02, 64).round(9),
}


def numbers(values):
    return ", ".join(repr(float(v)) for v in values)


def wrapped(values, indent):
    lines, line = [], ""
    for text in numbers(values).split(", "):
        if len(indent.expandtabs(4)) + len(line) + len(text) > 118:
            lines.append(line)
            line = ""
        line += text + ", "
    return ("\n" + indent).join(l.rstrip() for l in lines + [line.rstrip(", ")])


print(f"/* bench_stats_numpy.h: written by tests/data/make_bench_stats.py with numpy {np.__version__}. */")
print(f"static const double numpy_percentiles[] = {{ {numbers(PERCENTILES)} }};")
print("enum { NUMPY_PERCENTILES = sizeof numpy_percentiles / sizeof numpy_percentiles[0] };")
for name, values in cases.items():
    print(f"static const double values_{name}[] = {{\n\t{wrapped(values, chr(9))}\n}};")
print("static const struct numpy_case {\n\tconst char   *name;\n\tconst double *values;\n\tsize_t        count;\n"
      "\tdouble        mean, std, median, percentiles[NUMPY_PERCENTILES];\n} numpy_cases[] = {")
for name, values in cases.items():
    print(f"\t{{ \"{name}\", values_{name}, {len(values)}, {numbers([np.mean(values), np.std(values), np.median(values)])},")
    print(f"\t    {{ {wrapped(np.percentile(values, PERCENTILES), chr(9) + '      ')} }} }},")
print("};")
