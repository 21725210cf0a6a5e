/* answer.h: what one answer says so far: thought, content and calls, with stop strings looked for in the content.
 *
 * Stop strings do not look into thoughts and calls, nor across them.  What is `ready` may be shown: the rest is white space that is
 * dropped if a call follows, or the end of the thought.  A stream takes what is ready away; a whole answer leaves it.
 */
#ifndef PENSTOCK_API_ANSWER_H
#define PENSTOCK_API_ANSWER_H

#include "api/output.h"
#include "api/stop.h"

enum { ANSWER_CALLS_MAX = 128 }; /* after the last one the answer ends */

struct answer_call {
	char      *name; /* owned */
	size_t     name_len;
	struct buf arguments; /* not taken yet */
	bool       sent;      /* its name was */
};

struct answer {
	struct output       output;
	struct stop_matcher stop;
	struct buf          thought, content;
	size_t              thought_ready, content_ready;
	struct answer_call *calls; /* owned */
	unsigned            call_count, calls_max;
	unsigned            first_open; /* calls before it have nothing left to send */
	bool                cut;        /* it may make no more calls */
	uint32_t            keep;       /* tokens kept; valid once it has ended */
};

/* As output_init; MAX_BYTES bounds each of thought, content and arguments.  PARALLEL: it may make more than one call. */
void answer_init(struct answer *answer, size_t max_bytes);
void answer_begin(struct answer *answer, const struct output_format *format, const struct output_tools *tools,
    enum chat_reasoning start, bool parallel);
void answer_free(struct answer *answer);

/* As output_feed, output_feed_marker, output_finish.  Nothing is taken once it has ended. */
enum status answer_text(struct answer *answer, const char *bytes, size_t len, uint32_t tokens);
enum status answer_marker(struct answer *answer, enum output_marker marker, uint32_t tokens);
enum status answer_finish(struct answer *answer, bool stopped);

/* It ended before the model did: by a stop string, or by its last call; keep is valid. */
static inline bool answer_ended(const struct answer *answer) { return answer->stop.matched || answer->cut; }

/* A stream wrote what was ready, and what calls had. */
void answer_taken(struct answer *answer);
/* Is there anything for a stream to write? */
bool answer_has_news(const struct answer *answer);

#endif
