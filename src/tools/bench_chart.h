/* bench_chart.h: line charts as inline SVG, coloured by the classes of the page they stand in. */
#ifndef PENSTOCK_TOOLS_BENCH_CHART_H
#define PENSTOCK_TOOLS_BENCH_CHART_H

#include <stdbool.h>
#include <stdio.h>

enum { BENCH_CHART_COLOURS = 8 }; /* classes c0 … c7 */

struct bench_series {
	const char   *name;   /* in the legend; "" = not there */
	const double *x, *y;  /* points that are not finite, or not above 0 on a logarithmic axis, are left out */
	unsigned      count, colour;
	bool          dashed, markers;
	const char *const *notes; /* a text for each marker, or NULL */
};

struct bench_chart {
	const char *title, *x_label, *y_label;
	bool        log_x, log_y;
	const struct bench_series *series;
	unsigned    series_count;
};

/* Writes a <figure>; one sentence instead of the picture when there is no point to draw. */
void bench_chart_write(FILE *file, const struct bench_chart *chart);

/* Writes TEXT with &, <, >, " and ' escaped. */
void bench_chart_text(FILE *file, const char *text);

#endif
