/* backend.cu: owns an instance of the CUDA backend: device, streams, arena, the operation table, the first error.  Does not
 * own steps (step.cu), weights (weight.cu) or kernels.  Invariant: once an error was kept, every operation returns it: a
 * device that failed computes nothing that could be taken for a result. */
#include "base/checked.h"
#include "gpu/choose.h"
#include "gpu/cuda.h"
#include "model/plugin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK_BYTES = 64 << 20, NEEDED_AT_START = 1 << 30, RESERVE = 768 << 20 /* graphs, libraries, what the driver takes */,
    GRID_ROWS_MAX = 65535 /* blocks in the second dimension of a grid: kernels have one for each row */ };

/* ---- Errors ---- */

static const char *kernels_name(enum kernels kernels)
{
	return kernels == KERNELS_OWN ? "own" : kernels == KERNELS_PORTABLE ? "portable" : "library";
}

static const char *dtype_name(enum dtype dtype)
{
	return dtype == DTYPE_F32 ? "float32" : dtype == DTYPE_BF16 ? "bfloat16" : "float16";
}

enum status cuda_check(struct cuda_backend *cuda, cudaError_t code, const char *what)
{
	const struct step *step = &cuda->step;
	char               words[FAULT_WORDS_MAX] = "no step";

	if (code == cudaSuccess || cuda->fault)
		return cuda->fault;
	if (cuda->marks)
		fault_words(cuda->marks, cuda->history, words);
	cuda->fault = code == cudaErrorMemoryAllocation ? STATUS_NOMEM : STATUS_INTERNAL;
	error_set(&cuda->fault_error, cuda->fault,
	    "device %d: %s (%s) at %s; the device was in %s; step %llu of %u rows was enqueued last: the device must be set up anew",
	    cuda->device, cudaGetErrorString(code), cudaGetErrorName(code), what, words, (unsigned long long)step->number, step->rows);
	return cuda->fault;
}

/* ---- Arena ---- */

enum status arena_take(struct cuda_backend *cuda, size_t bytes, struct arena_block *ret)
{
	struct arena_chunk *chunk = cuda->chunks;
	uint64_t            aligned;

	if (cuda_check(cuda, cudaSetDevice(cuda->device), "cudaSetDevice")) /* of this thread: all memory is taken here */
		return cuda->fault;
	if (!checked_align_up(bytes ? bytes : 1, CUDA_ALIGN, &aligned))
		return STATUS_LIMIT;
	while (chunk && chunk->bytes - chunk->used < aligned)
		chunk = chunk->next;
	if (!chunk) {
		cudaError_t code;

		chunk = (struct arena_chunk *)calloc(1, sizeof *chunk);
		if (!chunk)
			return STATUS_NOMEM;
		chunk->bytes = aligned > CHUNK_BYTES / 2 ? aligned : (uint64_t)CHUNK_BYTES;
		code = cudaMalloc((void **)&chunk->data, chunk->bytes);
		if (code) {
			free(chunk);
			cudaGetLastError();
			return code == cudaErrorMemoryAllocation ? STATUS_NOMEM : cuda_check(cuda, code, "cudaMalloc");
		}
		chunk->next = cuda->chunks;
		cuda->chunks = chunk;
	}
	*ret = { chunk, chunk->data + chunk->used, (size_t)aligned };
	chunk->used += aligned;
	chunk->users++;
	return STATUS_OK;
}

void arena_drop(struct cuda_backend *cuda, struct arena_block *block)
{
	struct arena_chunk *chunk = block->chunk, **link = &cuda->chunks;

	*block = { NULL, NULL, 0 };
	if (!chunk || --chunk->users)
		return;
	while (*link != chunk)
		link = &(*link)->next;
	*link = chunk->next;
	cudaFree(chunk->data);
	free(chunk);
}

/* ---- Activations ---- */

static uint64_t activation_bytes(const struct backend *b, uint32_t rows, uint32_t width)
{
	return (uint64_t)rows * stride_of(width) * element_bytes((const struct cuda_backend *)b);
}

static enum status activation_alloc(struct backend *b, uint32_t rows, uint32_t width, struct activation *ret)
{
	struct cuda_rows *a = (struct cuda_rows *)calloc(1, sizeof *a);
	enum status       status = a ? arena_take(cuda_of(b), activation_bytes(b, rows, width), &a->block) : STATUS_NOMEM;

	if (status) {
		free(a);
		return status;
	}
	/* Padding is never written, but copied. */
	if (cuda_check(cuda_of(b), cudaMemsetAsync(a->block.data, 0, a->block.bytes, cuda_of(b)->stream), "clearing an activation")) {
		arena_drop(cuda_of(b), &a->block);
		free(a);
		return cuda_of(b)->fault;
	}
	a->data = a->block.data;
	a->rows = rows;
	a->width = width;
	a->stride = stride_of(width);
	*ret = { a, rows, width };
	return STATUS_OK;
}

static void activation_free(struct backend *b, struct activation *a)
{
	if (!a->data)
		return;
	norm_settle(cuda_of(b));
	cudaStreamSynchronize(cuda_of(b)->stream);
	arena_drop(cuda_of(b), &rows_of(a)->block);
	free(a->data);
	a->data = NULL;
}

/* ---- Scratch ---- */

/* Bytes of every part; places them at START when that is not NULL. */
static uint64_t scratch_place(const struct cuda_backend *cuda, const struct backend_limits *limits, struct cuda_scratch *ret,
    char *start)
{
	uint64_t rows = limits->rows, logit_rows = limits->logit_rows, width = stride_of(limits->width);
	uint64_t partial_rows = (logit_rows + CUDA_DECODE_ROWS) * CUDA_RUNS_MAX * limits->q_heads, at = 0;
	size_t   element = element_bytes(cuda);
	uint32_t vocab_stride = stride_of(limits->vocab), stream_stride = stride_of(limits->stream);
	uint32_t table_stride = vocab_stride, mask_words = (limits->vocab + 31) / 32;
	uint64_t rounded = rows * width * element;
	uint64_t bytes = byte_scratch_bytes(cuda, rows > logit_rows ? rows : logit_rows, limits->width);
	struct {
		size_t   field;
		uint64_t bytes;
	} parts[] = {
		{ offsetof(struct cuda_scratch, normed), logit_rows * width * element },
		{ offsetof(struct cuda_scratch, stream), cuda->dtype == DTYPE_F32 ? 0 : rows * stream_stride * sizeof(float) },
		{ offsetof(struct cuda_scratch, stream_next), cuda->dtype == DTYPE_F32 ? 0 : stream_stride * sizeof(float) },
		{ offsetof(struct cuda_scratch, rounded), rounded > bytes ? rounded : bytes },
		{ offsetof(struct cuda_scratch, logits), logit_rows * vocab_stride * sizeof(float) },
		{ offsetof(struct cuda_scratch, pooled), logit_rows * width * sizeof(float) },
		{ offsetof(struct cuda_scratch, rotation), rows * limits->head_dim * sizeof(float) },
		{ offsetof(struct cuda_scratch, partials), partial_rows * (limits->head_dim + 2) * sizeof(float) },
		{ offsetof(struct cuda_scratch, arrived), rows * limits->q_heads * sizeof(int32_t) },
		{ offsetof(struct cuda_scratch, arrived_runs), cuda->kernels == KERNELS_OWN ? partial_rows * sizeof(int32_t) : 0 },
		{ offsetof(struct cuda_scratch, ids), logit_rows * sizeof(int32_t) },
		{ offsetof(struct cuda_scratch, workspace), linear_workspace_bytes() },
		{ offsetof(struct cuda_scratch, int4), int4_workspace_bytes(cuda) },
		{ offsetof(struct cuda_scratch, tables), logit_rows * table_stride * sizeof(uint16_t) },
		{ offsetof(struct cuda_scratch, bias), logit_rows * SAMPLE_BIAS_MAX * sizeof(struct sample_bias) },
		{ offsetof(struct cuda_scratch, piece_most), 2 * logit_rows * sample_pieces(vocab_stride) * sizeof(float) },
		{ offsetof(struct cuda_scratch, piece_sums), 2 * logit_rows * sample_pieces(vocab_stride) * sizeof(uint64_t) },
		{ offsetof(struct cuda_scratch, masks), BACKEND_SAMPLES_MAX * logit_rows * mask_words * sizeof(uint32_t) },
	};

	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
		if (start)
			*(void **)((char *)ret + parts[i].field) = start + at;
		at += (parts[i].bytes + CUDA_ALIGN - 1) / CUDA_ALIGN * CUDA_ALIGN;
	}
	if (start) {
		ret->vocab_stride = vocab_stride;
		ret->stream_stride = stream_stride;
		ret->table_stride = table_stride;
		ret->mask_words = mask_words;
		ret->partial_rows = partial_rows;
	}
	return at;
}

static bool limits_are_sane(const struct backend_limits *limits)
{
	return limits->rows <= GRID_ROWS_MAX && limits->logit_rows <= GRID_ROWS_MAX && limits->width <= 1 << 24 &&
	       limits->vocab <= 1 << 20 && limits->head_dim <= CUDA_HEAD_DIM_MAX && limits->q_heads <= 1 << 12 &&
	       limits->stream <= 1 << 24;
}

static uint64_t scratch_bytes(const struct backend *b, const struct backend_limits *limits)
{
	return limits_are_sane(limits) ? scratch_place((const struct cuda_backend *)b, limits, NULL, NULL) : UINT64_MAX;
}

static enum status scratch_alloc(struct backend *b, const struct backend_limits *limits, struct error *error)
{
	struct cuda_backend *cuda = cuda_of(b);
	uint64_t             bytes = scratch_bytes(b, limits);
	enum status          status;

	if (cuda->scratch.block.data)
		return error_set(error, STATUS_INVALID, "scratch is taken once");
	if (bytes == UINT64_MAX)
		return error_set(error, STATUS_LIMIT, "a step of %u rows, %u logits, width %u, vocabulary %u, %u heads of %u is too large",
		    limits->rows, limits->logit_rows, limits->width, limits->vocab, limits->q_heads, limits->head_dim);
	weights_loaded(cuda);
	status = arena_take(cuda, bytes, &cuda->scratch.block);
	if (status)
		return error_set(error, status, "device %d: no memory for %llu MiB of scratch: lower step_tokens or max_running",
		    cuda->device, (unsigned long long)(bytes >> 20));
	cuda->scratch.limits = *limits;
	scratch_place(cuda, limits, &cuda->scratch, (char *)cuda->scratch.block.data);
	if (cuda_check(cuda, cudaMemsetAsync(cuda->scratch.block.data, 0, bytes, cuda->stream), "clearing scratch"))
		return *error = cuda->fault_error, cuda->fault;
	return step_alloc(cuda, error);
}

/* ---- Reading results ---- */

static enum status read_row(struct cuda_backend *cuda, const float *rows, size_t stride, uint32_t index, float *ret,
    uint32_t width)
{
	enum status status = cuda_check(cuda, cudaStreamSynchronize(cuda->stream), "reading a result");

	return status ? status : cuda_check(cuda, cudaMemcpy(ret, rows + index * stride, width * sizeof *ret,
	    cudaMemcpyDeviceToHost), "reading a result");
}

static enum status read_logits(struct backend *b, uint32_t index, float *ret, uint32_t vocab)
{
	struct cuda_backend *cuda = cuda_of(b);

	if (index >= cuda->step.wanted || vocab > cuda->step.vocab)
		return STATUS_INVALID;
	return read_row(cuda, cuda->scratch.logits, cuda->scratch.vocab_stride, index, ret, vocab);
}

static enum status read_pooled(struct backend *b, uint32_t index, float *ret, uint32_t width)
{
	struct cuda_backend *cuda = cuda_of(b);

	if (index >= cuda->step.wanted || width == 0 || width != cuda->step.pooled_width)
		return STATUS_INVALID;
	return read_row(cuda, cuda->scratch.pooled, width, index, ret, width);
}

/* ---- The instance ---- */

static enum status memory(struct backend *b, struct backend_memory *ret)
{
	struct cuda_backend *cuda = cuda_of(b);
	size_t               available, total;
	enum status          status = cuda_check(cuda, cudaSetDevice(cuda->device), "cudaSetDevice");

	status = status ? status : cuda_check(cuda, cudaStreamSynchronize(cuda->stream), "asking for memory");
	weights_loaded(cuda); /* who asks plans with what is left */
	status = status ? status : cuda_check(cuda, cudaMemGetInfo(&available, &total), "cudaMemGetInfo");
	if (status)
		return status;
	*ret = { total, available > RESERVE ? available - RESERVE : 0 };
	return STATUS_OK;
}

static const char *describe(struct backend *b) { return cuda_of(b)->description; }

static void destroy(struct backend *b)
{
	struct cuda_backend *cuda = cuda_of(b);

	if (!cuda)
		return;
	if (cuda->stream)
		cudaStreamSynchronize(cuda->stream);
	step_free(cuda);
	weights_loaded(cuda);
	linear_destroy(cuda);
	byte_destroy(cuda);
	while (cuda->chunks) {
		struct arena_chunk *next = cuda->chunks->next;

		cudaFree(cuda->chunks->data);
		free(cuda->chunks);
		cuda->chunks = next;
	}
	if (cuda->blas)
		cublasLtDestroy(cuda->blas);
	if (cuda->stream)
		cudaStreamDestroy(cuda->stream);
	if (cuda->copies)
		cudaStreamDestroy(cuda->copies);
	free(cuda);
}

static const struct backend_ops *operations(void)
{
	static const struct backend_ops table = {
		.version = BACKEND_VERSION, .name = "cuda", .overlaps = 1, .destroy = destroy, .memory = memory, .describe = describe,
		.weight_load = cuda_weight_load, .weight_dummy = cuda_weight_dummy, .weight_size = cuda_weight_size,
		.weight_free = cuda_weight_free, .weight_bytes = cuda_weight_bytes,
		.activation_bytes = activation_bytes, .activation_alloc = activation_alloc, .activation_free = activation_free,
		.kv_bytes = cuda_kv_bytes, .kv_alloc = cuda_kv_alloc, .scratch_bytes = scratch_bytes, .scratch_alloc = scratch_alloc,
		.step_begin = cuda_step_begin, .embed = cuda_embed, .rms_norm = cuda_rms_norm, .head_norm = cuda_head_norm,
		.linear = cuda_linear, .rope_kv_write = cuda_rope_kv_write, .attention = cuda_attention, .silu_gate = cuda_silu_gate,
		.linear_silu = cuda_linear_silu,
		.logits = cuda_logits, .embed_add = cuda_embed_add, .layer_norm = cuda_layer_norm,
		.attention_full = cuda_attention_full, .gelu = cuda_gelu, .pool = cuda_pool, .read_pooled = read_pooled,
		.kv_copy = cuda_kv_copy, .sample_slot = cuda_sample_slot, .sample = cuda_sample, .wait = cuda_wait,
		.read_logprobs = cuda_read_logprobs, .read_logits = read_logits,
		.rehearsal = cuda_rehearsal, .forward_begin = cuda_forward_begin, .forward_end = cuda_forward_end,
		.notes = cuda_notes, .load_words = cuda_load_words, .read_bandwidth = cuda_read_bandwidth, .step_times = cuda_step_times,
		.library = cuda_library, .product_way = cuda_product_way, .activation_put = cuda_activation_put,
		.activation_get = cuda_activation_get,
	};

	return &table;
}

static enum status read_dtype(const char *name, enum dtype *ret, struct error *error)
{
	if (!name || !*name || !strcmp(name, "bfloat16"))
		*ret = DTYPE_BF16;
	else if (!strcmp(name, "float16"))
		*ret = DTYPE_F16;
	else if (!strcmp(name, "float32"))
		*ret = DTYPE_F32;
	else
		return error_set(error, STATUS_INVALID, "dtype %.40s: the backend cuda computes in bfloat16, float16 or float32", name);
	return STATUS_OK;
}

/* auto, which becomes a choice when the device is known, is KERNELS_LIBRARY that is the FASTEST. */
static enum status read_kernels(const char *name, enum kernels *ret, int *ret_fastest, struct error *error)
{
	*ret_fastest = !name || !*name || !strcmp(name, "auto");
	if (*ret_fastest || !strcmp(name, "library"))
		*ret = KERNELS_LIBRARY;
	else if (!strcmp(name, "own"))
		*ret = KERNELS_OWN;
	else if (!strcmp(name, "portable"))
		*ret = KERNELS_PORTABLE;
	else
		return error_set(error, STATUS_INVALID, "kernels %.40s: auto, library, own or portable is needed", name);
	return STATUS_OK;
}

static enum status open_device(struct cuda_backend *cuda, struct error *error)
{
	int least = 0, greatest = 0;

	if (cuda_check(cuda, cudaSetDevice(cuda->device), "cudaSetDevice") ||
	    cuda_check(cuda, cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange") ||
	    cuda_check(cuda, cudaStreamCreateWithPriority(&cuda->stream, cudaStreamNonBlocking, greatest), "cudaStreamCreate") ||
	    cuda_check(cuda, cudaStreamCreateWithPriority(&cuda->copies, cudaStreamNonBlocking, greatest), "cudaStreamCreate") ||
	    attention_prepare(cuda)) {
		*error = cuda->fault_error;
		return cuda->fault;
	}
	if (cublasLtCreate(&cuda->blas) != CUBLAS_STATUS_SUCCESS)
		return error_set(error, STATUS_UNAVAILABLE, "cublasLtCreate failed on device %d", cuda->device);
	return linear_create(cuda, error);
}

extern "C" enum status cuda_backend_create(const struct plugin_options *options, const char *build, struct backend **ret,
    struct error *error)
{
	struct cuda_backend *cuda = (struct cuda_backend *)calloc(1, sizeof *cuda);
	struct choose_device device;
	struct error         words = {};
	bool                 has_own;
	enum status          status;

	if (!cuda)
		return error_set(error, STATUS_NOMEM, "out of memory for the CUDA backend");
	cuda->base.ops = operations();
	status = read_dtype(options->dtype, &cuda->dtype, &words);
	if (!status)
		status = read_kernels(options->kernels, &cuda->kernels, &cuda->fastest, &words);
	if (!status)
		status = choose_device(&choose_cuda, options->device ? options->device : "", build, NEEDED_AT_START, &cuda->device, &device,
		    &words);
	has_own = !status && device.major == 9 && strstr(build, "sm_90a");
	if (!status && cuda->kernels == KERNELS_OWN && !has_own)
		status = error_set(&words, STATUS_UNSUPPORTED, "kernels own: device %d is sm_%d%d, this object was built for %s, and they "
		    "are for sm_90a; library or portable is needed", cuda->device, device.major, device.minor, build);
	cuda->fastest = cuda->fastest && has_own && cuda->dtype != DTYPE_F32;
	if (cuda->fastest)
		cuda->kernels = KERNELS_OWN;
	if (!status) {
		cuda->multiprocessors = device.multiprocessors;
		cuda->major = device.major;
		cuda->minor = device.minor;
		snprintf(cuda->description, sizeof cuda->description, "cuda: device %d, %s (%s, sm_%d%d, %d multiprocessors), %s, "
		    "kernels: %s%s", cuda->device, device.name, device.uuid, device.major, device.minor, device.multiprocessors,
		    dtype_name(cuda->dtype), kernels_name(cuda->kernels),
		    cuda->fastest ? " or the library, by time" : "");
		status = open_device(cuda, &words);
	}
	if (status) {
		if (error)
			*error = words;
		destroy(&cuda->base);
		return status;
	}
	*ret = &cuda->base;
	return STATUS_OK;
}
