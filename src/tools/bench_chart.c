/* bench_chart.c: owns axes, ticks and the SVG of a chart.  Does not know what is drawn.  Written here because what Debian
 * offers for it brings X11 or a program to run with it, and a chart of lines is two pages.  Invariant: whatever the values,
 * the SVG is well-formed and every coordinate lies within the picture. */
#include "tools/bench_chart.h"

#include <math.h>
#include <string.h>

enum { WIDTH = 640, HEIGHT = 340, LEFT = 68, RIGHT = 16, TOP = 12, BOTTOM = 46, TICKS_MAX = 16, LEGEND_MAX = 24 };

struct axis {
	bool   log;
	double low, high;           /* in the axis' own scale: logarithms where it is logarithmic */
	double ticks[TICKS_MAX];    /* values */
	unsigned tick_count;
	double from, to;            /* pixels */
};

void bench_chart_text(FILE *file, const char *text)
{
	for (; *text; text++) {
		switch (*text) {
		case '&': fputs("&amp;", file); break;
		case '<': fputs("&lt;", file); break;
		case '>': fputs("&gt;", file); break;
		case '"': fputs("&quot;", file); break;
		case '\'': fputs("&#39;", file); break;
		default: fputc(*text, file);
		}
	}
}

static bool drawable(double value, bool log) { return isfinite(value) && (!log || value > 0) && fabs(value) < 1e15; }

static double scaled(const struct axis *axis, double value) { return axis->log ? log10(value) : value; }

static double pixel(const struct axis *axis, double value)
{
	double share = (scaled(axis, value) - axis->low) / (axis->high - axis->low);

	return axis->from + (axis->to - axis->from) * fmin(1, fmax(0, share));
}

static void add_tick(struct axis *axis, double value)
{
	double at = scaled(axis, value), slack = 1e-9 * (axis->high - axis->low);

	if (axis->tick_count < TICKS_MAX && at >= axis->low - slack && at <= axis->high + slack)
		axis->ticks[axis->tick_count++] = value;
}

/* From the extremes of the values (LOW > HIGH: none) to a range with ticks at round numbers. */
static void set_range(struct axis *axis, double low, double high)
{
	if (axis->log) {
		static const double fine[] = { 1, 1.5, 2, 3, 4, 5, 6, 8 }, coarse[] = { 1, 2, 5 };
		double   span, margin;
		unsigned steps;

		low = log10(low);
		high = log10(high);
		margin = high - low < 0.3 ? 0.15 : 0.04 * (high - low);
		axis->low = low -= margin;
		axis->high = high += margin;
		span = high - low;
		steps = span > 5 ? 1 : span > 1.5 ? 3 : 8;
		for (double decade = floor(low); decade <= ceil(high); decade += span > 12 ? 2 : 1)
			for (unsigned i = 0; i < steps; i++)
				add_tick(axis, (steps == 8 ? fine[i] : coarse[i]) * pow(10, decade));
		return;
	}
	if (low > 0)
		low = 0; /* lengths are compared from zero */
	if (high <= low)
		high = low + 1;
	double raw = (high - low) / 6, unit = pow(10, floor(log10(raw))), ratio = raw / unit;
	double step = unit * (ratio <= 1 ? 1 : ratio <= 2 ? 2 : ratio <= 5 ? 5 : 10);
	axis->low = floor(low / step) * step;
	axis->high = ceil(high / step) * step;
	for (double value = axis->low; value <= axis->high + step / 2; value += step)
		add_tick(axis, fabs(value) < step / 2 ? 0 : value);
}

static bool set_axes(const struct bench_chart *chart, struct axis *x, struct axis *y)
{
	double low_x = INFINITY, high_x = -INFINITY, low_y = INFINITY, high_y = -INFINITY;

	for (unsigned s = 0; s < chart->series_count; s++)
		for (unsigned i = 0; i < chart->series[s].count; i++) {
			double at_x = chart->series[s].x[i], at_y = chart->series[s].y[i];
			if (!drawable(at_x, chart->log_x) || !drawable(at_y, chart->log_y))
				continue;
			low_x = fmin(low_x, at_x), high_x = fmax(high_x, at_x);
			low_y = fmin(low_y, at_y), high_y = fmax(high_y, at_y);
		}
	if (low_x > high_x)
		return false;
	*x = (struct axis){ .log = chart->log_x, .from = LEFT, .to = WIDTH - RIGHT };
	*y = (struct axis){ .log = chart->log_y, .from = HEIGHT - BOTTOM, .to = TOP };
	set_range(x, low_x, high_x);
	set_range(y, low_y, high_y);
	return true;
}

static void write_axes(FILE *file, const struct bench_chart *chart, const struct axis *x, const struct axis *y)
{
	for (unsigned i = 0; i < x->tick_count; i++) {
		double at = pixel(x, x->ticks[i]);
		fprintf(file, "<line class=\"grid\" x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\"/>", at, TOP, at, HEIGHT - BOTTOM);
		fprintf(file, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.6g</text>\n", at, HEIGHT - BOTTOM + 16, x->ticks[i]);
	}
	for (unsigned i = 0; i < y->tick_count; i++) {
		double at = pixel(y, y->ticks[i]);
		fprintf(file, "<line class=\"grid\" x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\"/>", LEFT, at, WIDTH - RIGHT, at);
		fprintf(file, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.6g</text>\n", LEFT - 6, at + 4, y->ticks[i]);
	}
	fprintf(file, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">", (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8);
	bench_chart_text(file, chart->x_label);
	fprintf(file, "</text>\n<text transform=\"translate(14 %d) rotate(-90)\" text-anchor=\"middle\">", (TOP + HEIGHT - BOTTOM) / 2);
	bench_chart_text(file, chart->y_label);
	fputs("</text>\n", file);
}

static void write_series(FILE *file, const struct bench_chart *chart, const struct bench_series *series, const struct axis *x,
    const struct axis *y)
{
	bool any = false;

	fprintf(file, "<polyline class=\"line c%u%s\" points=\"", series->colour % BENCH_CHART_COLOURS,
	    series->dashed ? " dashed" : "");
	for (unsigned i = 0; i < series->count; i++) {
		if (!drawable(series->x[i], chart->log_x) || !drawable(series->y[i], chart->log_y))
			continue;
		fprintf(file, "%s%.1f,%.1f", any ? " " : "", pixel(x, series->x[i]), pixel(y, series->y[i]));
		any = true;
	}
	fputs("\"/>\n", file);
	for (unsigned i = 0; series->markers && i < series->count; i++) {
		if (!drawable(series->x[i], chart->log_x) || !drawable(series->y[i], chart->log_y))
			continue;
		fprintf(file, "<circle class=\"dot c%u\" cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\"><title>", series->colour % BENCH_CHART_COLOURS,
		    pixel(x, series->x[i]), pixel(y, series->y[i]));
		bench_chart_text(file, *series->name ? series->name : chart->title);
		if (series->notes && series->notes[i]) {
			fputs(", ", file);
			bench_chart_text(file, series->notes[i]);
		}
		fprintf(file, ": %.4g, %.4g</title></circle>\n", series->x[i], series->y[i]);
		if (series->notes && series->notes[i] && !series->dashed) {
			bool left = pixel(x, series->x[i]) > WIDTH - RIGHT - 30; /* no room on the other side */
			fprintf(file, "<text class=\"note\" x=\"%.1f\" y=\"%.1f\"%s>", pixel(x, series->x[i]) + (left ? -5 : 5),
			    pixel(y, series->y[i]) - 5, left ? " text-anchor=\"end\"" : "");
			bench_chart_text(file, series->notes[i]);
			fputs("</text>\n", file);
		}
	}
}

void bench_chart_write(FILE *file, const struct bench_chart *chart)
{
	struct axis x, y;
	unsigned    shown = 0;

	fputs("<figure><figcaption>", file);
	bench_chart_text(file, chart->title);
	fputs("</figcaption>\n", file);
	if (!set_axes(chart, &x, &y)) {
		fputs("<p>Nothing to draw.</p></figure>\n", file);
		return;
	}
	fprintf(file, "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"", WIDTH, HEIGHT);
	bench_chart_text(file, chart->title);
	fputs("\">\n", file);
	write_axes(file, chart, &x, &y);
	for (unsigned s = 0; s < chart->series_count; s++)
		write_series(file, chart, &chart->series[s], &x, &y);
	fputs("</svg>\n<p class=\"legend\">", file);
	for (unsigned s = 0; s < chart->series_count && shown < LEGEND_MAX; s++) {
		const struct bench_series *series = &chart->series[s];
		if (!*series->name)
			continue;
		fprintf(file, "<span class=\"c%u\">%s</span> ", series->colour % BENCH_CHART_COLOURS, series->dashed ? "┅" : "━");
		bench_chart_text(file, series->name);
		fputs(" &#160; ", file);
		shown++;
	}
	fputs("</p></figure>\n", file);
}
