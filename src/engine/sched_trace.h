/* sched_trace.h: records what a scheduler was asked and what it answered, so that `penstock sim --replay` can ask the same
 * of another build and compare every plan.
 *
 * The functions below stand for those of sched.h without `_trace`: they call the scheduler and write the call down.  TRACE
 * NULL records nothing.  Whoever records must make every call through them.
 *
 * A recording is text: "penstock-sched-trace 2", then a line per call: a letter and whole numbers.
 *
 *   O policy capacity max_running step_tokens block_size blocks depth long_prompt_tokens max_queue_wait_ns itl_target_ns
 *     draft_rows
 *   A handle length max_new expected cached begun class key arrival_ns deadline_ns   sched_add
 *   R handle                                                                     sched_remove
 *   S handle paused                                                              sched_set_paused, where it changes something
 *   B handle tokens                                                              sched_share
 *   D handle drafts                                                              sched_set_drafts
 *   P free_blocks now_ns evicted expired items rows sampled                      sched_plan, with the sizes of its answer
 *   E handle                                                                       each evicted one,
 *   X handle                                                                       each expired one,
 *   I handle start rows blocks admitted sampled drafts                             each item
 *   C handle new_tokens                                                          sched_confirm
 *   F rows sequences step_ns                                                     sched_feedback
 *   L generated                                                                  sched_learn
 *   T                                                                            the limit of the recording was reached
 *
 * O comes first and once.
 */
#ifndef PENSTOCK_ENGINE_SCHED_TRACE_H
#define PENSTOCK_ENGINE_SCHED_TRACE_H

#include "engine/sched.h"

#include <stdio.h>

#define SCHED_TRACE_HEAD "penstock-sched-trace 2"

struct sched_trace; /* opaque */

/* Records a scheduler made with OPTIONS to STREAM, which the recorder owns from now on, also when this fails; at most
 * MAX_BYTES.  STATUS_NOMEM, STATUS_IO. */
enum status sched_trace_create(FILE *stream, uint64_t max_bytes, const struct sched_options *options, struct sched_trace **ret);
/* Closes the stream.  STATUS_IO when not everything could be written. */
enum status sched_trace_destroy(struct sched_trace *trace);

void sched_trace_add(struct sched_trace *trace, struct sched *sched, uint32_t handle, const struct sched_job *job);
void sched_trace_remove(struct sched_trace *trace, struct sched *sched, uint32_t handle);
void sched_trace_set_paused(struct sched_trace *trace, struct sched *sched, uint32_t handle, bool paused);
void sched_trace_share(struct sched_trace *trace, struct sched *sched, uint32_t handle, uint32_t tokens);
void sched_trace_set_drafts(struct sched_trace *trace, struct sched *sched, uint32_t handle, uint32_t drafts);
void sched_trace_plan(struct sched_trace *trace, struct sched *sched, uint32_t free_blocks, uint64_t now_ns,
    struct sched_plan *ret);
void sched_trace_confirm(struct sched_trace *trace, struct sched *sched, uint32_t handle, uint32_t new_tokens);
void sched_trace_learn(struct sched_trace *trace, struct sched *sched, uint32_t generated);
void sched_trace_feedback(struct sched_trace *trace, struct sched *sched, uint32_t rows, uint32_t sequences, uint64_t step_ns);

#endif
