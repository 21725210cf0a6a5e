/* bench_chat.c: time to render a chat template.
 *
 *   bench/bench_chat TEMPLATE < lines     TEMPLATE as of penstock render; lines as it takes them, without kwargs
 *
 * Prints for each line the bytes of the prompt and the median, least and greatest time of ROUNDS renders, in microseconds.
 * bench/compare_jinja2.py makes conversations and puts Jinja2 beside it. */
#include "base/clock.h"
#include "text/chat_source.h"

#include <stdio.h>
#include <stdlib.h>

enum { ROUNDS = 201 };

static int compare(const void *a, const void *b)
{
	const double *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

int main(int argc, char **argv)
{
	struct jinja_template *jinja;
	struct error           error = { .message = "" };
	char                  *line = NULL;
	size_t                 capacity = 0;

	if (argc != 2) {
		fprintf(stderr, "usage: bench_chat TEMPLATE < lines\n");
		return 2;
	}
	if (chat_source_open(argv[1], NULL, &jinja, &error)) {
		fprintf(stderr, "%s\n", error.message);
		return 1;
	}
	while (getline(&line, &capacity, stdin) > 0) {
		json_t                *data = json_loads(line, 0, NULL);
		struct jinja_variables variables = { .data = data, .now = time(NULL) };
		double                 times[ROUNDS];
		size_t                 len = 0;

		for (int i = 0; i < ROUNDS; i++) {
			struct jinja_result result;
			uint64_t            begin = clock_now_ns();

			if (jinja_render(jinja, &variables, &result, &error)) {
				fprintf(stderr, "%s\n", error.message);
				return 1;
			}
			times[i] = (double)(clock_now_ns() - begin) / 1e3;
			len = result.len;
			jinja_result_free(&result);
		}
		qsort(times, ROUNDS, sizeof *times, compare);
		printf("%zu bytes: median %.0f us, least %.0f, greatest %.0f\n", len, times[ROUNDS / 2], times[0], times[ROUNDS - 1]);
		json_decref(data);
	}
	free(line);
	jinja_free(jinja);
	return 0;
}
