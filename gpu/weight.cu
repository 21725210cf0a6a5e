/* weight.cu: owns loaded weights: checks, the table of layouts, memory, vectors, and the layout of rows.  Does not own stored
 * formats (model/weight.h) nor the way of matrices to the device (load.cu, load_host.cu).  Invariant: a weight that was returned
 * holds every value its parts describe by the time the compute stream reads it.
 *
 * In the layout of rows a matrix lies as the model means it, in the backend's type, rows of inputs padded to whole 16 bytes.
 * What is stored in fewer bits than the type is decoded on the way; float32 is rounded.
 *
 * A stack whose parts are stored in different ways, so that no layout but that of rows takes all of it, is cut: neighbours that
 * lie in one way are a matrix, and the stack is these matrices one below the other (cut_of). */
#include "base/clock.h"
#include "gpu/decode.cuh"
#include "gpu/types.cuh"
#include "model/weight.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PARTS_MAX = 8, VECTOR_VALUES = 1 << 20 };

/* ---- Checks ---- */

static enum status check_parts(const struct weight_desc *parts, uint32_t count, bool values, struct error *error)
{
	uint64_t rows = 0;

	if (count < 1 || count > PARTS_MAX)
		return error_set(error, STATUS_LIMIT, "%u weights in one stack, at most %d", count, (int)PARTS_MAX);
	for (uint32_t i = 0; i < count; i++) {
		const struct weight_desc *w = &parts[i];
		enum status status = values ? weight_check(w, error) : STATUS_OK;

		if (status)
			return status;
		if (parts[0].rows == 1 ? w->rows != 1 : w->columns != parts[0].columns)
			return error_set(error, STATUS_INVALID, "%s: %llu × %llu in a stack with %llu × %llu", w->name,
			    (unsigned long long)w->rows,
			    (unsigned long long)w->columns, (unsigned long long)parts[0].rows, (unsigned long long)parts[0].columns);
		if (parts[0].rows == 1 && w->format != WEIGHT_F32 && w->format != WEIGHT_F16 && w->format != WEIGHT_BF16)
			return error_set(error, STATUS_UNSUPPORTED, "%s: a vector must be F32, F16 or BF16", w->name);
		if (w->input != parts[0].input || w->input_scale != parts[0].input_scale)
			return error_set(error, STATUS_UNSUPPORTED, "%s: stacked weights whose inputs are rounded differently", w->name);
		if (w->input != WEIGHT_INPUT_FLOAT && w->group_index)
			return error_set(error, STATUS_UNSUPPORTED, "%s: rounded inputs beside columns grouped by an index", w->name);
		rows += parts[0].rows == 1 ? w->columns : w->rows;
	}
	if (rows > INT32_MAX || parts[0].columns > INT32_MAX)
		return error_set(error, STATUS_LIMIT, "%s: a stack of %llu rows", parts[0].name, (unsigned long long)rows);
	return STATUS_OK;
}

/* ---- The layout of rows ---- */

static int rows_takes(const struct cuda_backend *cuda, const struct weight_desc *parts, uint32_t count)
{
	(void)cuda, (void)parts, (void)count;
	return 1;
}

static uint64_t rows_bytes(const struct cuda_backend *cuda, const struct weight_desc *parts, uint32_t count)
{
	uint64_t rows = 0;

	for (uint32_t i = 0; i < count; i++)
		rows += parts[i].rows;
	return rows * stride_of((uint32_t)parts[0].columns) * element_bytes(cuda);
}

static enum status rows_set(struct cuda_backend *cuda, struct backend_weight *w, const struct weight_desc *parts, uint32_t count)
{
	(void)cuda, (void)parts, (void)count;
	w->data = w->block.data;
	w->stride = stride_of(w->columns);
	return STATUS_OK;
}

static cudaError_t rows_place(struct cuda_backend *cuda, struct backend_weight *w, const struct stored_piece *piece)
{
	uint64_t blocks = (decode_packs(*piece) + DECODE_THREADS - 1) / DECODE_THREADS;

	FOR_DTYPE(cuda, T, decode_kernel<T><<<(unsigned)blocks, DECODE_THREADS, 0, cuda->stream>>>(*piece, (T *)w->data, w->stride));
	return cudaPeekAtLastError();
}

/* Stored values are those that the device computes with, and rows need no padding. */
static uint8_t *rows_straight(const struct cuda_backend *cuda, const struct backend_weight *w, const struct weight_desc *part,
    uint32_t stack_row)
{
	enum weight_format same = cuda->dtype == DTYPE_F32 ? WEIGHT_F32 : cuda->dtype == DTYPE_F16 ? WEIGHT_F16 : WEIGHT_BF16;

	return part->format == same && w->stride == w->columns ?
	    (uint8_t *)w->data + (size_t)stack_row * w->stride * element_bytes(cuda) : NULL;
}

static enum status rows_fill(struct cuda_backend *cuda, struct backend_weight *w)
{
	return rows_random(cuda, w->data, (uint64_t)w->rows * w->stride, 1 / sqrtf((float)w->columns), (uint64_t)(uintptr_t)w->data);
}

static const struct weight_layout layout_rows = { "rows", 1, DECODE_PACK, rows_takes, rows_bytes, rows_set, rows_place,
	rows_straight, rows_fill };

/* ---- Layouts ---- */

/* The first that takes a stack of parts is its layout. */
static const struct weight_layout *const layouts[] = { &layout_int4, &layout_bytes, &layout_rows };

static const struct weight_layout *layout_of(const struct cuda_backend *cuda, const struct weight_desc *parts, uint32_t count)
{
	size_t i = 0;

	while (!layouts[i]->takes(cuda, parts, count))
		i++;
	return layouts[i];
}

/* ---- Cut stacks ---- */

/* How many parts, from the first on, lie in one matrix. */
static uint32_t run_of(const struct cuda_backend *cuda, const struct weight_desc *parts, uint32_t count)
{
	const struct weight_layout *layout = layout_of(cuda, parts, 1);
	uint32_t                    n = 1;

	if (layout_of(cuda, parts, count) != &layout_rows)
		return count;
	while (n < count && layout_of(cuda, parts + n, 1) == layout && layout_of(cuda, parts, n + 1) == layout)
		n++;
	return n;
}

/* Into how many matrices a stack is cut; 1: it is not.  Each product writes its columns of the output: these begin at multiples
 * of 16 bytes. */
static uint32_t cut_of(const struct cuda_backend *cuda, const struct weight_desc *parts, uint32_t count)
{
	uint32_t ret = 0;
	uint64_t rows = 0;

	if (parts[0].rows == 1 || parts[0].input != WEIGHT_INPUT_FLOAT || cuda->kernels != KERNELS_OWN || cuda->dtype == DTYPE_F32)
		return 1;
	for (uint32_t first = 0, end; first < count; first = end, ret++) {
		if (rows % CUDA_STRIDE)
			return 1;
		end = first + run_of(cuda, parts + first, count - first);
		for (uint32_t i = first; i < end; i++)
			rows += parts[i].rows;
	}
	return ret;
}

static uint64_t bytes_of(const struct cuda_backend *cuda, const struct weight_desc *parts, uint32_t count)
{
	uint64_t values = 0;
	uint32_t run;

	if (cut_of(cuda, parts, count) > 1) {
		for (uint64_t bytes = 0;; parts += run, count -= run) {
			run = run_of(cuda, parts, count);
			bytes += (layout_of(cuda, parts, run)->bytes(cuda, parts, run) + CUDA_ALIGN - 1) / CUDA_ALIGN * CUDA_ALIGN;
			if (run == count)
				return bytes;
		}
	}
	if (parts[0].rows > 1)
		return layout_of(cuda, parts, count)->bytes(cuda, parts, count);
	for (uint32_t i = 0; i < count; i++)
		values += parts[i].columns;
	return values * sizeof(float);
}

enum status cuda_weight_size(struct backend *b, const struct weight_desc *parts, uint32_t count, uint64_t *ret,
    struct error *error)
{
	enum status status = check_parts(parts, count, true, error);

	if (!status)
		*ret = (bytes_of(cuda_of(b), parts, count) + CUDA_ALIGN - 1) / CUDA_ALIGN * CUDA_ALIGN;
	return status;
}

/* ---- Vectors ---- */

/* Room for COUNT values in the pinned buffer; NULL after an error. */
static float *vector_room(struct cuda_backend *cuda, uint64_t count)
{
	struct vector_staging *v = &cuda->vectors;

	if (!v->host && cuda_check(cuda, cudaHostAlloc((void **)&v->host, VECTOR_VALUES * sizeof *v->host, 0),
	    "pinned memory for vectors"))
		return NULL;
	if (count > VECTOR_VALUES - v->used) {
		if (cuda_check(cuda, cudaStreamSynchronize(cuda->copies), "loading a vector"))
			return NULL;
		v->used = 0;
	}
	v->used += count;
	return v->host + v->used - count;
}

static enum status load_vectors(struct cuda_backend *cuda, const struct weight_desc *parts, uint32_t count, float *to,
    struct error *error)
{
	for (uint32_t i = 0; i < count; i++) {
		uint64_t values = parts[i].columns;
		float   *room;

		if (values > VECTOR_VALUES)
			return error_set(error, STATUS_LIMIT, "%s: a vector of %llu values, the limit is %d", parts[i].name,
			    (unsigned long long)values, (int)VECTOR_VALUES);
		room = vector_room(cuda, values);
		if (room) {
			weight_read_row(&parts[i], 0, room);
			(void)cuda_check(cuda, cudaMemcpyAsync(to, room, values * sizeof *to, cudaMemcpyHostToDevice, cuda->copies),
			    "loading a vector");
		}
		to += values;
	}
	/* It is there before anything that the compute stream gets from now on. */
	if (!cuda->vectors.sent && !cuda->fault)
		(void)cuda_check(cuda, cudaEventCreateWithFlags(&cuda->vectors.sent, cudaEventDisableTiming), "cudaEventCreate");
	if (!cuda->fault)
		(void)cuda_check(cuda, cudaEventRecord(cuda->vectors.sent, cuda->copies), "cudaEventRecord");
	if (!cuda->fault)
		(void)cuda_check(cuda, cudaStreamWaitEvent(cuda->stream, cuda->vectors.sent, 0), "cudaStreamWaitEvent");
	if (cuda->fault && error)
		*error = cuda->fault_error;
	return cuda->fault;
}

/* ---- Weights ---- */

/* Counts stacks of bytes, and those that lie in more. */
static void note_widened(struct cuda_backend *cuda, const struct backend_weight *w, const struct weight_desc *part)
{
	struct upload_totals *totals = &cuda->uploaded;

	if (part->format != WEIGHT_F8_E4M3 && part->format != WEIGHT_I8)
		return;
	totals->narrow++;
	if (w->layout == &layout_rows && totals->widened++ == 0)
		snprintf(totals->first_widened, sizeof totals->first_widened, "%.60s, %s", part->name, weight_format_name(part->format));
}

/* Takes the memory of a weight that is not cut. */
static enum status make_whole(struct cuda_backend *cuda, const struct weight_desc *parts, uint32_t count,
    struct backend_weight **ret, struct error *error)
{
	struct backend_weight *w = (struct backend_weight *)calloc(1, sizeof *w);
	uint64_t               bytes = bytes_of(cuda, parts, count);
	enum status            status = w ? cuda_check(cuda, cudaSetDevice(cuda->device), "cudaSetDevice") : STATUS_NOMEM;

	if (!status)
		status = arena_take(cuda, bytes, &w->block);
	if (status) {
		size_t available = 0, total = 0;

		free(w);
		cudaMemGetInfo(&available, &total);
		return error_set(error, status, "%s: no memory on device %d for %llu MiB: %llu of %llu MiB are free; `penstock plan` "
		    "says what a model takes and what fits", parts[0].name, cuda->device, (unsigned long long)(bytes >> 20),
		    (unsigned long long)(available >> 20), (unsigned long long)(total >> 20));
	}
	w->bytes = w->block.bytes;
	w->columns = (uint32_t)parts[0].columns;
	w->rows = 1;
	w->input = parts[0].input;
	w->input_scale = parts[0].input_scale;
	if (parts[0].rows == 1) {
		w->vector = (float *)w->block.data;
		w->columns = 0;
		for (uint32_t i = 0; i < count; i++)
			w->columns += (uint32_t)parts[i].columns;
	} else {
		w->rows = 0;
		for (uint32_t i = 0; i < count; i++)
			w->rows += (uint32_t)parts[i].rows;
		w->layout = layout_of(cuda, parts, count);
		status = w->layout->set(cuda, w, parts, count);
		if (status) {
			arena_drop(cuda, &w->block);
			free(w);
			return error_set(error, status, "%s: its place was not made ready", parts[0].name);
		}
		int4_note(cuda, w, parts, count);
		note_widened(cuda, w, &parts[0]);
		w->next = cuda->weights;
		if (w->next)
			w->next->previous = w;
		cuda->weights = w;
	}
	*ret = w;
	return STATUS_OK;
}

/* Brings the values of a weight that is not cut. */
static enum status load_whole(struct cuda_backend *cuda, struct backend_weight *w, const struct weight_desc *parts, uint32_t count,
    struct error *error)
{
	if (w->vector)
		return load_vectors(cuda, parts, count, w->vector, error);
	/* the device decodes where its own kernels are wanted: it has not done so yet */
	return cuda->kernels == KERNELS_LIBRARY && w->layout == &layout_rows ? load_host_matrix(cuda, w, parts, count, error) :
	    load_matrix(cuda, w, parts, count, error);
}

static enum status fill_whole(struct cuda_backend *cuda, struct backend_weight *w, struct error *error)
{
	enum status status = w->vector ? rows_random(cuda, w->vector, w->columns, 0, (uint64_t)(uintptr_t)w->vector) :
	    w->layout->random(cuda, w);

	if (status && error)
		*error = cuda->fault_error;
	return status;
}

/* A weight with its values: those of PARTS, or with DUMMY random ones. */
static enum status make_weight(struct cuda_backend *cuda, const struct weight_desc *parts, uint32_t count, bool dummy,
    struct backend_weight **ret, struct error *error)
{
	uint32_t               cut = cut_of(cuda, parts, count), first = 0;
	struct backend_weight *w = NULL;
	enum status            status = STATUS_OK;

	if (cut == 1) {
		status = make_whole(cuda, parts, count, &w, error);
		if (status)
			return status;
		status = dummy ? fill_whole(cuda, w, error) : load_whole(cuda, w, parts, count, error);
	} else {
		w = (struct backend_weight *)calloc(1, sizeof *w);
		if (w)
			w->cut = (struct backend_weight **)calloc(cut, sizeof(struct backend_weight *));
		if (!w || !w->cut) {
			free(w);
			return error_set(error, STATUS_NOMEM, "%s: out of memory", parts[0].name);
		}
		w->columns = (uint32_t)parts[0].columns;
		w->input = parts[0].input;
		for (uint32_t run; first < count && !status; first += run) {
			struct backend_weight *part;

			run = run_of(cuda, parts + first, count - first);
			status = make_weight(cuda, parts + first, run, dummy, &part, error);
			if (status)
				break;
			w->cut[w->cut_count++] = part;
			w->rows += part->rows;
			w->bytes += part->bytes;
		}
	}
	if (status) {
		cudaStreamSynchronize(cuda->copies);
		cuda_weight_free(&cuda->base, w);
		return status;
	}
	*ret = w;
	return STATUS_OK;
}

enum status cuda_weight_load(struct backend *b, const struct weight_desc *parts, uint32_t count,
    struct backend_weight **ret, struct error *error)
{
	struct cuda_backend   *cuda = cuda_of(b);
	struct backend_weight *w;
	uint64_t               begin = clock_now_ns();
	enum status            status = check_parts(parts, count, true, error);

	if (!status)
		status = make_weight(cuda, parts, count, false, &w, error);
	if (status)
		return status;
	for (uint32_t i = 0; i < count; i++)
		cuda->uploaded.stored_bytes += parts[i].bytes + parts[i].scales.bytes + parts[i].zeros.bytes;
	cuda->uploaded.sent_bytes += w->bytes;
	cuda->uploaded.ns += clock_now_ns() - begin;
	*ret = w;
	return STATUS_OK;
}

void weights_loaded(struct cuda_backend *cuda)
{
	uint64_t begin = clock_now_ns();

	if (cuda->vectors.host)
		cudaStreamSynchronize(cuda->copies);
	cudaFreeHost(cuda->vectors.host);
	if (cuda->vectors.sent)
		cudaEventDestroy(cuda->vectors.sent);
	cuda->vectors = {};
	load_host_destroy(cuda);
	load_destroy(cuda);
	cuda->uploaded.ns += clock_now_ns() - begin;
}

/* Stages work beside each other: the longest one is what loading takes. */
const char *cuda_load_words(struct backend *b)
{
	struct cuda_backend        *cuda = cuda_of(b);
	const struct upload_totals *t = &cuda->uploaded;
	double                      threads = t->threads ? t->threads : 1;

	if (!t->ns)
		return "none from files";
	snprintf(cuda->load_words, sizeof cuda->load_words, t->on_device ? "reading %.2f, link %.2f, decoding %.2f beside each other" :
	    "reading and decoding %.2f, waiting for the link %.2f", (double)t->fill_ns * 1e-9 / threads,
	    (double)(t->on_device ? t->link_ns : t->wait_ns) * 1e-9 / (t->on_device ? 1 : threads), (double)t->place_ns * 1e-9);
	return cuda->load_words;
}

/* Vectors around 1, matrices so that outputs are as large as inputs. */
enum status cuda_weight_dummy(struct backend *b, const struct weight_desc *parts, uint32_t count,
    struct backend_weight **ret, struct error *error)
{
	enum status status = check_parts(parts, count, false, error);

	return status ? status : make_weight(cuda_of(b), parts, count, true, ret, error);
}

void cuda_weight_free(struct backend *b, struct backend_weight *w)
{
	struct cuda_backend *cuda = cuda_of(b);

	if (!w)
		return;
	cudaSetDevice(cuda->device);
	cudaStreamSynchronize(cuda->stream);
	for (uint32_t i = 0; i < w->cut_count; i++)
		cuda_weight_free(b, w->cut[i]);
	free(w->cut);
	if (w->next)
		w->next->previous = w->previous;
	if (w->previous)
		w->previous->next = w->next;
	else if (cuda->weights == w)
		cuda->weights = w->next;
	arena_drop(cuda, &w->block);
	free(w->int4);
	free(w);
}

uint64_t cuda_weight_bytes(const struct backend *b, const struct backend_weight *w)
{
	(void)b;
	return w->bytes;
}
