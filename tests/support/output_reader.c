/* output_reader.c: owns what a client has of an answer.  Does not know what was meant. */
#include "support/output_reader.h"

void output_said_init(struct output_said *said)
{
	*said = (struct output_said){ .valid = true };
	buf_init(&said->thought, 1 << 24);
	buf_init(&said->content, 1 << 24);
	buf_init(&said->calls, 1 << 24);
	buf_append(&said->thought, "", 0);
	buf_append(&said->content, "", 0);
	buf_append(&said->calls, "", 0);
}

void output_said_free(struct output_said *said)
{
	buf_free(&said->thought);
	buf_free(&said->content);
	buf_free(&said->calls);
}

static void end_call(struct output_said *said)
{
	if (said->seen == 0)
		return;
	said->valid = said->valid && json_scan_valid(said->calls.data + said->arguments_at, said->calls.len - said->arguments_at);
	buf_append(&said->calls, "\n", 1);
}

const char *output_said_take(struct output_said *said, struct answer *a)
{
	buf_append(&said->thought, a->thought.data, a->thought_ready);
	buf_append(&said->content, a->content.data, a->content_ready);
	for (unsigned i = a->first_open; i < a->call_count; i++) {
		const struct answer_call *call = &a->calls[i];

		if (i + 1 < said->seen && call->arguments.len)
			return "arguments of a call came behind the next one";
		if (!call->sent) {
			if (i != said->seen)
				return "a call was left out, or came twice";
			end_call(said);
			said->seen++;
			buf_append_format(&said->calls, "%s ", call->name);
			said->arguments_at = said->calls.len;
		}
		buf_append(&said->calls, call->arguments.data, call->arguments.len);
	}
	answer_taken(a);
	return NULL;
}

void output_said_end(struct output_said *said) { end_call(said); }
