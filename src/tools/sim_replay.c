/* sim_replay.c: owns the reading of recordings and the comparison of plans.
 *
 * A recording is a stranger's file: what the scheduler takes for granted (a handle in range and in use, no confirmation
 * without a plan) is checked before every call.  Invariant: `pending` of a handle is the number of plans that name it and are
 * not confirmed. */
#include "tools/sim_replay.h"

#include "engine/sched_trace.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_BYTES = 512, NUMBERS_MAX = 11, CAPACITY_MAX = 1 << 24 };

struct call {
	char    letter;
	int64_t numbers[NUMBERS_MAX];
	unsigned count;
};

struct handle {
	bool     used;
	uint8_t  pending;
	uint32_t tokens[SCHED_DEPTH_MAX]; /* that the plans may give, oldest first */
};

struct replay {
	FILE         *stream;
	const char   *name;
	struct error *error;
	uint64_t      line;
	struct sched_options options;
	struct sched  *sched;
	struct handle *handles; /* [capacity] */
	uint32_t       full;    /* handles that `depth` plans name */
	struct sim_replay result;
};

static enum status bad(const struct replay *r, const char *what)
{
	return error_set(r->error, STATUS_INVALID, "%.160s: line %" PRIu64 ": %s", r->name, r->line, what);
}

static enum status differs(const struct replay *r, const char *what, int64_t was, int64_t is)
{
	return error_set(r->error, STATUS_INTERNAL, "%.160s: line %" PRIu64 ", plan %" PRIu64 ": %s was %" PRId64 " and is %" PRId64,
	    r->name, r->line, r->result.plans, what, was, is);
}

static enum status read_line(struct replay *r, char line[LINE_BYTES])
{
	size_t len;

	r->line++;
	if (!fgets(line, LINE_BYTES, r->stream))
		return ferror(r->stream) ? error_set(r->error, STATUS_IO, "%.160s: cannot read: %s", r->name, strerror(errno))
		                         : STATUS_AGAIN;
	len = strlen(line);
	if (len == 0 || line[len - 1] != '\n')
		return bad(r, feof(r->stream) ? "the last line is not whole" : "no line of a recording");
	line[len - 1] = '\0';
	return STATUS_OK;
}

/* A letter and whole numbers, one blank before each. */
static enum status read_call(struct replay *r, struct call *ret)
{
	char        line[LINE_BYTES], *at = line + 1, *end;
	enum status status = read_line(r, line);

	if (status)
		return status;
	ret->letter = line[0];
	for (ret->count = 0; *at; at = end) {
		if (ret->count == NUMBERS_MAX || *at != ' ' || !strchr("-0123456789", at[1]) || !at[1])
			return bad(r, "no line of a recording");
		errno = 0;
		ret->numbers[ret->count++] = at[1] == '-' ? strtoll(at + 1, &end, 10) : (int64_t)strtoull(at + 1, &end, 10);
		if (errno || end == at + 1)
			return bad(r, "a number out of range");
	}
	return STATUS_OK;
}

static bool is_u32(int64_t number) { return number >= 0 && number <= UINT32_MAX; }

/* COUNT numbers, the first SMALL of them 32 bits and not negative. */
static enum status expect(const struct replay *r, const struct call *call, unsigned count, unsigned small)
{
	if (call->count != count)
		return bad(r, "not the right number of values");
	for (unsigned i = 0; i < small; i++)
		if (!is_u32(call->numbers[i]))
			return bad(r, "a number out of range");
	return STATUS_OK;
}

static enum status expect_handle(const struct replay *r, const struct call *call, bool used)
{
	if (call->numbers[0] >= r->options.capacity)
		return bad(r, "the handle is beyond the capacity");
	if (r->handles[call->numbers[0]].used != used)
		return bad(r, used ? "the handle is not in use" : "the handle is in use");
	return STATUS_OK;
}

static enum status open_recording(struct replay *r)
{
	char        line[LINE_BYTES];
	struct call call;
	enum status status = read_line(r, line);

	if (status == STATUS_AGAIN || (!status && strcmp(line, SCHED_TRACE_HEAD)))
		return error_set(r->error, STATUS_INVALID, "%.160s: does not begin with \"%s\"", r->name, SCHED_TRACE_HEAD);
	if (!status)
		status = read_call(r, &call);
	if (status)
		return status == STATUS_AGAIN ? bad(r, "the options are missing") : status;
	status = call.letter == 'O' ? expect(r, &call, 11, 8) : bad(r, "the options are missing");
	if (status)
		return status;
	r->options = (struct sched_options){ .policy = (enum sched_policy)call.numbers[0], .capacity = (uint32_t)call.numbers[1],
		.max_running = (uint32_t)call.numbers[2], .step_tokens = (uint32_t)call.numbers[3],
		.block_size = (uint32_t)call.numbers[4], .blocks = (uint32_t)call.numbers[5], .depth = (uint32_t)call.numbers[6],
		.long_prompt_tokens = (uint32_t)call.numbers[7], .max_queue_wait_ns = (uint64_t)call.numbers[8],
		.itl_target_ns = (uint64_t)call.numbers[9], .draft_rows = (uint32_t)call.numbers[10] };
	if (call.numbers[0] > SCHED_FAIR || !is_u32(call.numbers[10]) || r->options.capacity > CAPACITY_MAX || r->options.depth == 0 ||
	    r->options.depth > SCHED_DEPTH_MAX)
		return bad(r, "options that no scheduler was made with");
	status = sched_create(&r->options, &r->sched);
	if (status)
		return error_set(r->error, status, "%.160s: line %" PRIu64 ": no scheduler with these options: %s", r->name, r->line,
		    status_text(status));
	r->handles = calloc(r->options.capacity, sizeof *r->handles);
	return r->handles ? STATUS_OK : bad(r, "no memory for the handles");
}

static enum status replay_add(struct replay *r, const struct call *call)
{
	const int64_t   *n = call->numbers;
	struct sched_job job;
	enum status      status = expect(r, call, 10, 6);

	if (!status)
		status = expect_handle(r, call, false);
	if (status)
		return status;
	job = (struct sched_job){ .length = (uint32_t)n[1], .max_new = (uint32_t)n[2], .expected = (uint32_t)n[3],
		.cached = (uint32_t)n[4], .begun = n[5] != 0, .class = (int32_t)n[6], .key = (uint64_t)n[7], .arrival_ns = (uint64_t)n[8],
		.deadline_ns = (uint64_t)n[9] };
	if (n[6] < INT32_MIN || n[6] > INT32_MAX || job.length == 0 || job.max_new == 0 || job.expected > job.max_new ||
	    job.cached >= job.length ||
	    (uint64_t)job.length + job.max_new > (uint64_t)r->options.blocks * r->options.block_size)
		return bad(r, "a job that no engine passes on");
	r->handles[n[0]] = (struct handle){ .used = true };
	sched_add(r->sched, (uint32_t)n[0], &job);
	return STATUS_OK;
}

/* The next COUNT lines say what LETTER was; HANDLES what it is. */
static enum status compare_handles(struct replay *r, char letter, const uint32_t *handles, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		struct call call;
		enum status status = read_call(r, &call);

		if (status || call.letter != letter || call.count != 1)
			return status && status != STATUS_AGAIN ? status : bad(r, "a handle of the plan is missing");
		if (call.numbers[0] != handles[i])
			return differs(r, letter == 'E' ? "an evicted handle" : "an expired handle", call.numbers[0], handles[i]);
	}
	return STATUS_OK;
}

static enum status compare_items(struct replay *r, const struct sched_plan *plan)
{
	static const char *const names[] = { "the handle of an item", "the start of an item", "the rows of an item",
		"the blocks of an item", "`admitted` of an item", "`sampled` of an item", "the drafts of an item" };

	for (uint32_t i = 0; i < plan->count; i++) {
		const struct sched_item *item = &plan->items[i];
		const int64_t            is[] = { item->handle, item->start, item->rows, item->blocks, item->admitted, item->sampled,
			item->drafts };
		struct handle           *handle;
		struct call              call;
		enum status              status = read_call(r, &call);

		if (status || call.letter != 'I' || call.count != 7)
			return status && status != STATUS_AGAIN ? status : bad(r, "an item of the plan is missing");
		for (unsigned n = 0; n < 7; n++)
			if (call.numbers[n] != is[n])
				return differs(r, names[n], call.numbers[n], is[n]);
		handle = &r->handles[item->handle];
		handle->tokens[handle->pending] = item->sampled + item->drafts;
		r->full += ++handle->pending == r->options.depth;
	}
	return STATUS_OK;
}

static enum status replay_plan(struct replay *r, const struct call *call)
{
	static const char *const names[] = { "the number of evicted ones", "the number of expired ones", "the number of items",
		"the number of rows", "the number of samples" };
	struct sched_plan plan;
	enum status       status = expect(r, call, 7, 1);

	if (!status && (call->numbers[0] > r->options.blocks || call->numbers[1] < 0))
		status = bad(r, "a number out of range");
	if (!status && r->full)
		status = bad(r, "more plans outstanding than the options say");
	if (status)
		return status;
	sched_plan(r->sched, (uint32_t)call->numbers[0], (uint64_t)call->numbers[1], &plan);
	r->result.plans++;
	const int64_t is[] = { plan.evicted_count, plan.expired_count, plan.count, plan.rows, plan.sampled };
	for (unsigned i = 0; i < 5; i++)
		if (call->numbers[2 + i] != is[i])
			return differs(r, names[i], call->numbers[2 + i], is[i]);
	status = compare_handles(r, 'E', plan.evicted, plan.evicted_count);
	if (!status)
		status = compare_handles(r, 'X', plan.expired, plan.expired_count);
	return status ? status : compare_items(r, &plan);
}

static enum status replay_confirm(struct replay *r, const struct call *call)
{
	struct handle *handle;
	enum status    status = expect(r, call, 2, 2);

	if (!status)
		status = expect_handle(r, call, true);
	if (status)
		return status;
	handle = &r->handles[call->numbers[0]];
	if (handle->pending == 0 || call->numbers[1] > handle->tokens[0] || (handle->tokens[0] > 1 && call->numbers[1] == 0))
		return bad(r, "a confirmation of what was not planned");
	handle->tokens[0] = handle->tokens[1];
	r->full -= handle->pending-- == r->options.depth;
	sched_confirm(r->sched, (uint32_t)call->numbers[0], (uint32_t)call->numbers[1]);
	return STATUS_OK;
}

static enum status replay_call(struct replay *r, const struct call *call)
{
	enum status status;

	r->result.calls++;
	switch (call->letter) {
	case 'A':
		return replay_add(r, call);
	case 'P':
		return replay_plan(r, call);
	case 'C':
		return replay_confirm(r, call);
	case 'R':
	case 'S':
	case 'B':
	case 'D':
		status = expect(r, call, call->letter == 'R' ? 1 : 2, call->letter == 'R' ? 1 : 2);
		if (!status)
			status = expect_handle(r, call, true);
		if (status)
			return status;
		if (call->letter != 'R') {
			if (call->letter == 'S')
				sched_set_paused(r->sched, (uint32_t)call->numbers[0], call->numbers[1] != 0);
			else if (call->letter == 'D')
				sched_set_drafts(r->sched, (uint32_t)call->numbers[0], (uint32_t)call->numbers[1]);
			else
				sched_share(r->sched, (uint32_t)call->numbers[0], (uint32_t)call->numbers[1]);
			return STATUS_OK;
		}
		r->full -= r->handles[call->numbers[0]].pending == r->options.depth;
		r->handles[call->numbers[0]] = (struct handle){ .used = false };
		sched_remove(r->sched, (uint32_t)call->numbers[0]);
		return STATUS_OK;
	case 'F':
		status = expect(r, call, 3, 2);
		if (!status && call->numbers[2] < 0)
			status = bad(r, "a number out of range");
		if (!status)
			sched_feedback(r->sched, (uint32_t)call->numbers[0], (uint32_t)call->numbers[1], (uint64_t)call->numbers[2]);
		return status;
	case 'L':
		status = expect(r, call, 1, 1);
		if (!status)
			sched_learn(r->sched, (uint32_t)call->numbers[0]);
		return status;
	case 'T':
		r->result.cut = true;
		return STATUS_AGAIN;
	}
	return bad(r, "no call that is known");
}

enum status sim_replay(FILE *stream, const char *name, struct sim_replay *ret, struct error *error)
{
	struct replay r = { .stream = stream, .name = name, .error = error };
	struct call   call;
	enum status   status = open_recording(&r);

	while (!status) {
		status = read_call(&r, &call);
		if (!status)
			status = replay_call(&r, &call);
	}
	sched_destroy(r.sched);
	free(r.handles);
	if (status != STATUS_AGAIN)
		return status;
	*ret = r.result;
	return STATUS_OK;
}
