/* sampler.cu: owns samples and slots on the host's side: staging, launches.  Does not own the logits, nor the kernels
 * (sampler.cuh). */
#include "gpu/launch.cuh"
#include "gpu/sampler.cuh"
#include "gpu/types.cuh"

#include <stdlib.h>
#include <string.h>

static int compare_bias(const void *a, const void *b)
{
	const struct sample_bias *x = (const struct sample_bias *)a, *y = (const struct sample_bias *)b;
	return (x->id > y->id) - (x->id < y->id);
}

/* Carries COUNT of the next words to slot SLOT; the staging buffer has its turn when the last fill from it has run. */
static enum status enqueue_fill(struct cuda_backend *cuda, uint32_t slot, const struct slot_words *count,
    const struct sample_bias *bias, const int32_t *bans, const int32_t *prompt, const int32_t *drawn)
{
	struct slot_staging *staging = &cuda->slot_staging[cuda->slot_fills++ % CUDA_SLOT_STAGES];
	uint32_t             words = 2 * count->biases + count->bans + count->prompt + count->drawn;
	int32_t             *to = staging->host;

	if (staging->used && cuda_check(cuda, cudaEventSynchronize(staging->taken), "waiting for a sampler slot"))
		return cuda->fault;
	if (count->biases) {
		memcpy(to, bias, count->biases * sizeof *bias);
		qsort(to, count->biases, sizeof *bias, compare_bias);
	}
	to += 2 * count->biases;
	if (count->bans)
		memcpy(to, bans, count->bans * sizeof *to);
	to += count->bans;
	if (count->prompt)
		memcpy(to, prompt, count->prompt * sizeof *to);
	to += count->prompt;
	if (count->drawn)
		memcpy(to, drawn, count->drawn * sizeof *to);
	if (cuda_check(cuda, cudaMemcpyAsync(staging->device, staging->host, words * sizeof *to, cudaMemcpyHostToDevice, cuda->copies),
	        "uploading a sampler slot") ||
	    cuda_check(cuda, cudaEventRecord(staging->copied, cuda->copies), "cudaEventRecord") ||
	    cuda_check(cuda, cudaStreamWaitEvent(cuda->stream, staging->copied, 0), "cudaStreamWaitEvent"))
		return cuda->fault;
	fill_slot<<<(words + FILL_THREADS - 1) / FILL_THREADS, FILL_THREADS, 0, cuda->stream>>>(
	    cuda->scratch.tables + (size_t)slot * cuda->scratch.table_stride, cuda->scratch.bias + (size_t)slot * SAMPLE_BIAS_MAX,
	    *count, staging->device, mark_next(cuda, FAULT_SLOT));
	if (cuda_launched(cuda, "fill_slot") || cuda_check(cuda, cudaEventRecord(staging->taken, cuda->stream), "cudaEventRecord"))
		return cuda->fault;
	staging->used = 1;
	return STATUS_OK;
}

enum status cuda_sample_slot(struct backend *b, uint32_t slot, const struct sample_slot *from)
{
	struct cuda_backend *cuda = cuda_of(b);
	uint32_t             vocab = cuda->scratch.limits.vocab, prompt = 0, drawn = 0;
	struct slot_words    count = { from->bias_count, from->ban_count, 0, 0 };

	if (cuda->fault)
		return cuda->fault;
	if (slot >= cuda->scratch.limits.logit_rows || !sampling_slot_is_valid(from, vocab))
		return STATUS_INVALID;
	if (cuda_check(cuda, cudaSetDevice(cuda->device), "cudaSetDevice") ||
	    cuda_check(cuda, cudaMemsetAsync(cuda->scratch.tables + (size_t)slot * cuda->scratch.table_stride, 0,
	            cuda->scratch.table_stride * sizeof(uint16_t), cuda->stream), "clearing a sampler slot"))
		return cuda->fault;
	cuda->slot_biases[slot] = (uint16_t)from->bias_count;
	do { /* a long prompt in pieces */
		uint32_t room = CUDA_SLOT_WORDS - 2 * count.biases - count.bans;

		count.prompt = from->prompt_tokens - prompt < room ? from->prompt_tokens - prompt : room;
		room -= count.prompt;
		count.drawn = from->drawn_tokens - drawn < room ? from->drawn_tokens - drawn : room;
		if (count.biases + count.bans + count.prompt + count.drawn == 0)
			break;
		if (enqueue_fill(cuda, slot, &count, from->bias, from->bans, from->prompt + prompt, from->drawn + drawn))
			return cuda->fault;
		prompt += count.prompt;
		drawn += count.drawn;
		count.biases = count.bans = 0;
	} while (prompt < from->prompt_tokens || drawn < from->drawn_tokens);
	return STATUS_OK;
}

/* ---- The sample ---- */

enum status sample_prepare(struct cuda_backend *cuda)
{
	enum status status = allow_shared(cuda, sample_draw<false>, DRAW_SHARED_BYTES, "shared memory of a draw");

	return status ? status : allow_shared(cuda, sample_draw<true>, DRAW_SHARED_BYTES, "shared memory of a draw");
}

enum status cuda_read_logprobs(struct backend *b, uint32_t index, struct sample_logprobs *ret)
{
	struct cuda_backend         *cuda = cuda_of(b);
	const struct sample_staging *sample = &cuda->samples[(cuda->waited + BACKEND_SAMPLES_MAX - 1) % BACKEND_SAMPLES_MAX];

	if (cuda->waited == 0 || index >= sample->count || sample->host[index].params.logprobs == 0 || sample->ids[index] < 0)
		return STATUS_INVALID;
	*ret = sample->logprobs[index];
	return STATUS_OK;
}

/* Jobs of ROWS, and the masks of those that have one; returns the number of masks.  *ret_extras: as sample_draw's;
 * *ret_slots: some row has a slot; *ret_lists: some row has filters or
 * wants log probabilities. */
static uint32_t fill_jobs(const struct cuda_backend *cuda, struct sample_staging *sample, const struct sample_row *rows,
    uint32_t count, uint32_t vocab, bool *ret_extras,
    bool *ret_slots, bool *ret_lists)
{
	uint32_t masks = 0, words = (vocab + 31) / 32;

	*ret_extras = *ret_slots = *ret_lists = false;
	for (uint32_t i = 0; i < count; i++) {
		struct sample_job *job = &sample->host[i];

		*job = {};
		job->params = rows[i].params;
		job->position = rows[i].position;
		job->choice = rows[i].choice;
		job->logit_row = rows[i].logit_row;
		job->slot = rows[i].slot;
		job->bias_count = rows[i].slot ? cuda->slot_biases[rows[i].slot - 1] : 0;
		job->bans = rows[i].generated < rows[i].params.min_tokens;
		job->mask = -1;
		job->guess_count = rows[i].guess_count;
		if (rows[i].guess_count)
			memcpy(job->guesses, rows[i].guesses, rows[i].guess_count * sizeof *job->guesses);
		*ret_slots = *ret_slots || rows[i].slot;
		*ret_lists = *ret_lists || rows[i].params.top_k > 1 || rows[i].params.top_p < 1 || rows[i].params.min_p > 0 ||
		             rows[i].params.logprobs;
		*ret_extras = *ret_extras || rows[i].slot || rows[i].mask || rows[i].params.logprobs;
		if (rows[i].mask) {
			memcpy(sample->masks + (size_t)masks * cuda->scratch.mask_words, rows[i].mask, words * sizeof(uint32_t));
			job->mask = (int32_t)masks++;
		}
	}
	return masks;
}

/* EXTRAS, SLOTS, LISTS: as fill_jobs says. */
static enum status enqueue_draws(struct cuda_backend *cuda, const struct sample_staging *sample, uint32_t count, uint32_t vocab,
    const uint32_t *masks, bool extras, bool slots, bool lists)
{
	struct cuda_scratch *scratch = &cuda->scratch;
	struct sample_arrays arrays = { scratch->logits, scratch->tables, scratch->bias, masks, scratch->ids, sample->ids,
		sample->logprobs, scratch->piece_most, (word *)scratch->piece_sums, scratch->vocab_stride, scratch->table_stride,
		scratch->mask_words, sample_pieces(scratch->vocab_stride), scratch->limits.logit_rows, LIST_ROOM };
	struct backend_step_times *times = cuda->times + cuda->step.number % BACKEND_TIMES_MAX;
	uint32_t pieces = sample_pieces(vocab), each = SCAN_EACH_MAX;
	auto     scan = extras ? sample_scan<true> : sample_scan<false>;
	auto     draw = extras ? sample_draw<true> : sample_draw<false>;
	auto     draw_plain = extras ? sample_draw_plain<true> : sample_draw_plain<false>;

	/* Few rows: shorter blocks for all multiprocessors. */
	if ((uint64_t)count * pieces < (uint64_t)cuda->multiprocessors * 8 * SCAN_WARPS * SCAN_EACH_MAX)
		each = AT_ONCE;
	scan<<<dim3((pieces + SCAN_WARPS * each - 1) / (SCAN_WARPS * each), count), SCAN_THREADS, 0, cuda->stream>>>(sample->device,
	    arrays, vocab, each, mark_next(cuda, FAULT_SAMPLE), times);
	if (lists || pieces > PLAIN_PIECES_MAX
	        ? launch(cuda, "sample_draw", true, draw, count, DRAW_THREADS, DRAW_SHARED_BYTES, sample->device, arrays, vocab,
	              mark_next(cuda, FAULT_SAMPLE), times)
	        : launch(cuda, "sample_draw_plain", true, draw_plain, count, PLAIN_THREADS, 0, sample->device, arrays, vocab,
	              mark_next(cuda, FAULT_SAMPLE), times))
		return cuda->fault;
	if (slots)
		note_draws<<<1, FILL_THREADS, 0, cuda->stream>>>(sample->device, arrays, count);
	return cuda_launched(cuda, "sample") ? cuda->fault : STATUS_OK;
}

enum status cuda_sample(struct backend *b, const struct sample_row *rows, uint32_t count, uint32_t vocab_limit)
{
	struct cuda_backend   *cuda = cuda_of(b);
	uint32_t               part = (uint32_t)(cuda->sampled % BACKEND_SAMPLES_MAX), masks;
	struct sample_staging *sample = &cuda->samples[part];
	uint32_t               vocab = vocab_limit < cuda->step.vocab ? vocab_limit : cuda->step.vocab;
	struct cuda_scratch   *scratch = &cuda->scratch;
	size_t                 mask_bytes;
	bool                   extras, slots, lists;
	enum status            status;
	uint32_t              *device_masks = scratch->masks + (size_t)part * scratch->limits.logit_rows * scratch->mask_words;

	if (cuda->fault)
		return cuda->fault;
	if (!cuda->step.batch || count > scratch->limits.logit_rows || vocab == 0)
		return STATUS_INVALID;
	for (uint32_t i = 0; i < count; i++)
		if (rows[i].logit_row >= cuda->step.batch->logit_row_count || rows[i].slot > scratch->limits.logit_rows ||
		    rows[i].params.logprobs > SAMPLE_TOP_MAX + 1 || rows[i].guess_count >= BACKEND_DECODE_QUERIES_MAX)
			return STATUS_INVALID;
	if (cuda->sampled - cuda->waited == BACKEND_SAMPLES_MAX) /* nobody asked for the oldest */
		cuda->waited++;
	if (cuda_check(cuda, cudaSetDevice(cuda->device), "cudaSetDevice") ||
	    (sample->used && cuda_check(cuda, cudaEventSynchronize(sample->done), "waiting for an old sample")))
		return cuda->fault;
	masks = fill_jobs(cuda, sample, rows, count, vocab, &extras, &slots, &lists);
	mask_bytes = (size_t)masks * scratch->mask_words * sizeof(uint32_t);
	if (cuda_check(cuda, cudaMemcpyAsync(sample->device, sample->host, count * sizeof *sample->host, cudaMemcpyHostToDevice,
	        cuda->copies), "uploading rows to sample") ||
	    (masks && cuda_check(cuda, cudaMemcpyAsync(device_masks, sample->masks, mask_bytes, cudaMemcpyHostToDevice, cuda->copies),
	            "uploading masks")) ||
	    cuda_check(cuda, cudaEventRecord(sample->copied, cuda->copies), "cudaEventRecord") ||
	    cuda_check(cuda, cudaStreamWaitEvent(cuda->stream, sample->copied, 0), "cudaStreamWaitEvent"))
		return cuda->fault;
	if (count && (status = enqueue_draws(cuda, sample, count, vocab, device_masks, extras, slots, lists)))
		return status;
	if (cuda_check(cuda, cudaEventRecord(sample->done, cuda->stream), "cudaEventRecord"))
		return cuda->fault;
	sample->used = 1;
	sample->count = count;
	cuda->sampled++;
	return STATUS_OK;
}
