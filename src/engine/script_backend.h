/* script_backend.h: a backend that answers from a file: its mathematics do nothing, its `sample` draws the ids of a
 * script.  For tests of everything around the model: exact bytes, pacing, cancellation, slow readers, faults.  It loads no
 * weights and takes no memory for a cache; hyper-parameters and vocabulary come from the model file as usual.
 *
 * The file is text, one statement a line; '#' starts a comment:
 *
 *   prefill MICROSECONDS   before the first script: a step that draws nothing (prompt chunks) takes this long; default 0
 *   overlap                before the first script: the backend takes the next step before the last one has ended
 *   script NAME            begins a script; [A-Za-z0-9._-]{1,40}, unique
 *   pace MICROSECONDS      a step in which this script draws takes at least this long; default 1000
 *   ids ID …               what it draws, any number of lines.  Beside ids: `nan` stands for logits that were not finite,
 *                          `fault` for a device that fails
 *   delay MICROSECONDS     the step of the next id takes this much longer, the first time it is drawn.  It stalls the other
 *                          streams like a long prompt would
 *   likely M [ID M] …      of the next id: it has the log probability −M / 1000 each time it is drawn, and other ids that
 *                          were likely in its place have theirs.  An id without has 0, and no others
 *   repeat COUNT           the ids are drawn COUNT times over; 0 = for ever; default 1
 *   eos ID                 drawn at the end; default the model's
 *
 *   script snowman
 *   pace 5000
 *   delay 200000
 *   ids 158 246 131
 *   repeat 1000
 *
 * Penalties, biases and bans are accepted and change nothing: what comes is what the file says.  In place of an id that a row's
 * mask does not have comes the lowest one that it has.
 *
 * A request plays script number seed mod count (in the order of the file); token k of its answer is the k-th id.  All
 * streams of a step share its pace: the longest of those that draw in it.  A step begins when it is enqueued, or when the
 * one before it ends; the wait is a sleep to an absolute time.
 */
#ifndef PENSTOCK_ENGINE_SCRIPT_BACKEND_H
#define PENSTOCK_ENGINE_SCRIPT_BACKEND_H

#include "model/backend.h"

enum script_limits {
	SCRIPT_FILE_MAX = 1 << 26,       /* bytes */
	SCRIPT_COUNT_MAX = 1024,
	SCRIPT_IDS_MAX = 1 << 20,        /* of one script */
	SCRIPT_DELAYS_MAX = 1024,        /* of one script */
	SCRIPT_LIKELY_MAX = 1 << 16,     /* of one script: pairs, an id's own among them */
	SCRIPT_MILLINATS_MAX = 9999000,
	SCRIPT_NAME_MAX = 40,
	SCRIPT_PACE_MAX = 60 * 1000000,  /* µs */
	SCRIPT_DELAY_MAX = 600 * 1000000 /* µs */
};

struct script_options {
	uint32_t vocab; /* ids 0 … vocab − 1 may be drawn */
	int32_t  eos;   /* the default of `eos` */
};

/* Reads PATH, or TEXT of LEN bytes under the name LABEL.  Errors are "PATH:LINE: …" with the offending value. */
enum status script_backend_open(const char *path, const struct script_options *options, struct backend **ret,
    struct error *error);
enum status script_backend_parse(const char *text, size_t len, const char *label, const struct script_options *options,
    struct backend **ret, struct error *error);

#endif
