/* exposition.c: owns the Prometheus text format.  Does not know any metric.  Invariant: every line it writes is well-formed
 * whatever the help text holds. */
#include "api/exposition.h"

#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

static bool name_valid(const char *name)
{
	static const char first[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_:";

	return *name && strchr(first, *name) &&
	    name[strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_:")] == '\0';
}

static enum status append_help(struct buf *out, const char *help)
{
	enum status status = STATUS_OK;

	for (; *help && !status; help++) {
		if (*help == '\\' || *help == '\n')
			status = buf_append(out, *help == '\n' ? "\\n" : "\\\\", 2);
		else
			status = buf_append(out, help, 1);
	}
	return status;
}

static enum status append_head(struct buf *out, const char *name, const char *kind, const char *help)
{
	enum status status = buf_append_format(out, "# HELP %s ", name);

	if (!status)
		status = append_help(out, help);
	return status ? status : buf_append_format(out, "\n# TYPE %s %s\n", name, kind);
}

static enum status append_row(struct buf *out, const struct exposition_row *row, bool first_of_name)
{
	bool        labels = row->labels && *row->labels;
	enum status status = STATUS_OK;

	if (!name_valid(row->name))
		return STATUS_INVALID;
	if (first_of_name)
		status = append_head(out, row->name, row->kind, row->help);
	if (!status)
		status = buf_append_format(out, "%s%s%s%s %" PRIu64 "\n", row->name, labels ? "{" : "", labels ? row->labels : "",
		    labels ? "}" : "", row->value);
	return status;
}

enum status exposition_append(struct buf *out, const struct exposition_row *rows, size_t count)
{
	size_t      start = out->len;
	enum status status = STATUS_OK;

	for (size_t i = 0; i < count && !status; i++)
		status = append_row(out, &rows[i], i == 0 || strcmp(rows[i - 1].name, rows[i].name) != 0);
	if (status && out->data) {
		out->len = start;
		out->data[start] = '\0';
	}
	return status;
}

static enum status append_buckets(struct buf *out, const struct exposition_histogram *h, uint64_t *ret_total)
{
	uint64_t    total = 0;
	enum status status = STATUS_OK;

	for (uint32_t i = 0; i <= h->edge_count && !status; i++) {
		total += h->counts[i];
		if (i < h->edge_count)
			status = buf_append_format(out, "%s_bucket{le=\"%.10g\"} %" PRIu64 "\n", h->name,
			    (double)h->edges[i] / (double)h->divisor, total);
		else
			status = buf_append_format(out, "%s_bucket{le=\"+Inf\"} %" PRIu64 "\n", h->name, total);
	}
	*ret_total = total;
	return status;
}

enum status exposition_append_histogram(struct buf *out, const struct exposition_histogram *h)
{
	size_t      start = out->len;
	uint64_t    total = 0;
	enum status status = name_valid(h->name) ? append_head(out, h->name, "histogram", h->help) : STATUS_INVALID;

	if (!status)
		status = append_buckets(out, h, &total);
	if (!status)
		status = buf_append_format(out, "%s_sum %.17g\n%s_count %" PRIu64 "\n", h->name, (double)h->sum / (double)h->divisor,
		    h->name, total);
	if (status && out->data) {
		out->len = start;
		out->data[start] = '\0';
	}
	return status;
}
