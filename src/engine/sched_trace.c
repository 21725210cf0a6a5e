/* sched_trace.c: owns the writing of recordings.  Does not own the scheduler, nor decides anything.
 *
 * A recording that cannot go on (disk full, limit reached) ends; serving does not.  Invariant: a plan is written whole or
 * not at all, unless the disk refuses it. */
#include "engine/sched_trace.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>

enum { LINE_MAX_BYTES = 256 };

struct sched_trace {
	FILE    *stream; /* owned */
	uint64_t left;   /* bytes it may still have */
	bool     over;   /* nothing more is written */
	bool    *paused; /* [capacity] */
};

/* So many lines may still be written; else the recording ends here. */
static bool room_for(struct sched_trace *trace, uint64_t lines)
{
	if (!trace->over && trace->left / LINE_MAX_BYTES <= lines) { /* one more than asked for: the last line */
		fputs("T\n", trace->stream);
		trace->over = true;
	}
	return !trace->over;
}

static void write_line(struct sched_trace *trace, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void write_line(struct sched_trace *trace, const char *format, ...)
{
	va_list args;
	int     len;

	if (!room_for(trace, 1))
		return;
	va_start(args, format);
	len = vfprintf(trace->stream, format, args);
	va_end(args);
	trace->over = len < 0;
	trace->left -= len < 0 ? 0 : (uint64_t)len;
}

enum status sched_trace_create(FILE *stream, uint64_t max_bytes, const struct sched_options *o, struct sched_trace **ret)
{
	struct sched_trace *trace = calloc(1, sizeof *trace);

	if (trace)
		trace->paused = calloc(o->capacity, sizeof *trace->paused);
	if (!trace || !trace->paused) {
		free(trace);
		fclose(stream);
		return STATUS_NOMEM;
	}
	trace->stream = stream;
	trace->left = max_bytes;
	write_line(trace, SCHED_TRACE_HEAD "\n");
	write_line(trace,
	    "O %d %" PRIu32 " %" PRIu32 " %" PRIu32 " %" PRIu32 " %" PRIu32 " %" PRIu32 " %" PRIu32 " %" PRIu64 " %" PRIu64
	    " %" PRIu32 "\n",
	    (int)o->policy, o->capacity, o->max_running, o->step_tokens, o->block_size, o->blocks, o->depth ? o->depth : 1,
	    o->long_prompt_tokens, o->max_queue_wait_ns, o->itl_target_ns, o->draft_rows);
	if (fflush(stream)) {
		sched_trace_destroy(trace);
		return STATUS_IO;
	}
	*ret = trace;
	return STATUS_OK;
}

enum status sched_trace_destroy(struct sched_trace *trace)
{
	bool bad;

	if (!trace)
		return STATUS_OK;
	bad = ferror(trace->stream);
	bad |= fclose(trace->stream) != 0;
	free(trace->paused);
	free(trace);
	return bad ? STATUS_IO : STATUS_OK;
}

void sched_trace_add(struct sched_trace *trace, struct sched *sched, uint32_t handle, const struct sched_job *job)
{
	if (trace) {
		write_line(trace,
		    "A %" PRIu32 " %" PRIu32 " %" PRIu32 " %" PRIu32 " %" PRIu32 " %d %" PRId32 " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n",
		    handle, job->length, job->max_new, job->expected, job->cached, job->begun, job->class, job->key, job->arrival_ns,
		    job->deadline_ns);
		trace->paused[handle] = false;
	}
	sched_add(sched, handle, job);
}

void sched_trace_remove(struct sched_trace *trace, struct sched *sched, uint32_t handle)
{
	if (trace)
		write_line(trace, "R %" PRIu32 "\n", handle);
	sched_remove(sched, handle);
}

void sched_trace_set_paused(struct sched_trace *trace, struct sched *sched, uint32_t handle, bool paused)
{
	if (trace && trace->paused[handle] != paused) {
		write_line(trace, "S %" PRIu32 " %d\n", handle, paused);
		trace->paused[handle] = paused;
	}
	sched_set_paused(sched, handle, paused);
}

void sched_trace_share(struct sched_trace *trace, struct sched *sched, uint32_t handle, uint32_t tokens)
{
	if (trace)
		write_line(trace, "B %" PRIu32 " %" PRIu32 "\n", handle, tokens);
	sched_share(sched, handle, tokens);
}

void sched_trace_set_drafts(struct sched_trace *trace, struct sched *sched, uint32_t handle, uint32_t drafts)
{
	if (trace)
		write_line(trace, "D %" PRIu32 " %" PRIu32 "\n", handle, drafts);
	sched_set_drafts(sched, handle, drafts);
}

void sched_trace_plan(struct sched_trace *trace, struct sched *sched, uint32_t free_blocks, uint64_t now_ns,
    struct sched_plan *ret)
{
	sched_plan(sched, free_blocks, now_ns, ret);
	if (!trace || !room_for(trace, UINT64_C(1) + ret->evicted_count + ret->expired_count + ret->count)) /* whole or not at all */
		return;
	write_line(trace,
	    "P %" PRIu32 " %" PRIu64 " %" PRIu32 " %" PRIu32 " %" PRIu32 " %" PRIu32 " %" PRIu32 "\n", free_blocks, now_ns,
	    ret->evicted_count, ret->expired_count, ret->count, ret->rows, ret->sampled);
	for (uint32_t i = 0; i < ret->evicted_count; i++)
		write_line(trace, "E %" PRIu32 "\n", ret->evicted[i]);
	for (uint32_t i = 0; i < ret->expired_count; i++)
		write_line(trace, "X %" PRIu32 "\n", ret->expired[i]);
	for (uint32_t i = 0; i < ret->count; i++) {
		const struct sched_item *item = &ret->items[i];
		write_line(trace, "I %" PRIu32 " %" PRIu32 " %" PRIu32 " %" PRIu32 " %d %d %" PRIu32 "\n", item->handle, item->start,
		    item->rows, item->blocks, item->admitted, item->sampled, item->drafts);
	}
	if (ret->count == 0 && !trace->over) /* a pause: whoever looks at the file finds all of it */
		trace->over = fflush(trace->stream) != 0;
}

void sched_trace_confirm(struct sched_trace *trace, struct sched *sched, uint32_t handle, uint32_t new_tokens)
{
	if (trace)
		write_line(trace, "C %" PRIu32 " %" PRIu32 "\n", handle, new_tokens);
	sched_confirm(sched, handle, new_tokens);
}

void sched_trace_learn(struct sched_trace *trace, struct sched *sched, uint32_t generated)
{
	if (trace)
		write_line(trace, "L %" PRIu32 "\n", generated);
	sched_learn(sched, generated);
}

void sched_trace_feedback(struct sched_trace *trace, struct sched *sched, uint32_t rows, uint32_t sequences, uint64_t step_ns)
{
	if (trace)
		write_line(trace, "F %" PRIu32 " %" PRIu32 " %" PRIu64 "\n", rows, sequences, step_ns);
	sched_feedback(sched, rows, sequences, step_ns);
}
