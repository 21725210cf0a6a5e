/* load_host.cu: owns the loading of stored matrices that are decoded on the host: threads read through the map, decode into
 * pinned memory and send what the device computes with.  Serves kernels = library; load.cu takes its place where stored bytes
 * are decoded on the device.  Invariant: what was sent is there before anything that the compute stream gets afterwards.
 *
 * A matrix is cut into pieces, which threads take one after the other.  Each has two pinned buffers: while one is on its way
 * to the device the other is filled, and the pages of the file that a piece needs are asked for before they are read, so
 * that the disk works for as many pieces at once as there are threads.  No thread waits for another before the end of the
 * matrix. */
#include "base/clock.h"
#include "gpu/types.cuh"
#include "model/weight.h"

#include <atomic>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>

enum { PIECE_BYTES = 8 << 20, PIECE_LEAST = 512 << 10, LANE_BUFFERS = 2, LANES_MAX = 16 };

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

/* A thread's way to the device. */
struct upload_lane {
	char       *buffer[LANE_BUFFERS]; /* pinned */
	cudaEvent_t free[LANE_BUFFERS];
	float      *values; /* a decoded row */
	unsigned    next;
	uint64_t    fill_ns, wait_ns;
	cudaError_t failed;
};

struct upload {
	struct upload_lane lanes[LANES_MAX];
	unsigned    count;
	uint64_t    row_values; /* room of `values` */
	cudaEvent_t sent;
};

static enum status make_lanes(struct cuda_backend *cuda)
{
	unsigned       cores = std::thread::hardware_concurrency();
	struct upload *upload;
	enum status    status;

	if (cuda->upload)
		return STATUS_OK;
	upload = cuda->upload = (struct upload *)calloc(1, sizeof *cuda->upload);
	if (!upload)
		return STATUS_NOMEM;
	upload->count = cores < 1 ? 1 : cores < LANES_MAX ? cores : (unsigned)LANES_MAX;
	status = cuda_check(cuda, cudaEventCreateWithFlags(&upload->sent, cudaEventDisableTiming), "cudaEventCreate");
	for (unsigned i = 0; i < upload->count * LANE_BUFFERS && !status; i++) {
		struct upload_lane *lane = &upload->lanes[i / LANE_BUFFERS];
		unsigned            k = i % LANE_BUFFERS;

		status = cuda_check(cuda, cudaHostAlloc((void **)&lane->buffer[k], PIECE_BYTES, 0), "cudaHostAlloc");
		status = status ? status : cuda_check(cuda, cudaEventCreateWithFlags(&lane->free[k], cudaEventDisableTiming),
		    "cudaEventCreate");
		status = status ? status : cuda_check(cuda, cudaEventRecord(lane->free[k], cuda->copies), "cudaEventRecord");
	}
	return status;
}

/* Their work into the totals. */
static void note_work(struct cuda_backend *cuda)
{
	struct upload_totals *totals = &cuda->uploaded;

	totals->threads = cuda->upload->count;
	for (unsigned i = 0; i < cuda->upload->count; i++) {
		totals->fill_ns += cuda->upload->lanes[i].fill_ns;
		totals->wait_ns += cuda->upload->lanes[i].wait_ns;
	}
}

void load_host_destroy(struct cuda_backend *cuda)
{
	struct upload *upload = cuda->upload;

	if (!upload)
		return;
	cudaStreamSynchronize(cuda->copies);
	note_work(cuda);
	for (unsigned i = 0; i < upload->count; i++) {
		for (int k = 0; k < LANE_BUFFERS; k++) {
			cudaFreeHost(upload->lanes[i].buffer[k]);
			if (upload->lanes[i].free[k])
				cudaEventDestroy(upload->lanes[i].free[k]);
		}
		free(upload->lanes[i].values);
	}
	if (upload->sent)
		cudaEventDestroy(upload->sent);
	free(upload);
	cuda->upload = NULL;
}

/* Room for a row of COUNT values in each lane. */
static enum status upload_rows(struct upload *upload, uint64_t count)
{
	if (count <= upload->row_values)
		return STATUS_OK;
	for (unsigned i = 0; i < upload->count; i++) {
		float *values = (float *)realloc(upload->lanes[i].values, count * sizeof *values);

		if (!values)
			return STATUS_NOMEM;
		upload->lanes[i].values = values;
	}
	upload->row_values = count;
	return STATUS_OK;
}

/* A buffer of LANE that nothing reads any more; NULL after an error. */
static char *lane_buffer(struct upload_lane *lane)
{
	unsigned i = lane->next % LANE_BUFFERS;
	uint64_t begin = clock_now_ns();

	if (!lane->failed)
		lane->failed = cudaEventSynchronize(lane->free[i]);
	lane->wait_ns += clock_now_ns() - begin;
	return lane->failed ? NULL : lane->buffer[i];
}

static void lane_send(const struct cuda_backend *cuda, struct upload_lane *lane, void *to, size_t bytes)
{
	unsigned i = lane->next++ % LANE_BUFFERS;

	lane->failed = cudaMemcpyAsync(to, lane->buffer[i], bytes, cudaMemcpyHostToDevice, cuda->copies);
	if (!lane->failed)
		lane->failed = cudaEventRecord(lane->free[i], cuda->copies);
}

/* What was sent so far is there before anything that the compute stream gets from now on. */
static enum status upload_settle(struct cuda_backend *cuda)
{
	for (unsigned i = 0; i < cuda->upload->count; i++)
		if (cuda_check(cuda, cuda->upload->lanes[i].failed, "uploading a weight"))
			return cuda->fault;
	if (cuda_check(cuda, cudaEventRecord(cuda->upload->sent, cuda->copies), "cudaEventRecord"))
		return cuda->fault;
	return cuda_check(cuda, cudaStreamWaitEvent(cuda->stream, cuda->upload->sent, 0), "cudaStreamWaitEvent");
}

/* Asks for the pages of a mapped file, all at once instead of one by one; anything else of memory does not mind. */
static void ask_for_pages(const void *data, size_t bytes, int advice)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)data / page * page;

	(void)madvise((void *)begin, (uintptr_t)data + bytes - begin, advice);
}

/* ---- Decoding ---- */

template <class T> static void store_row(const float *values, uint64_t count, void *ret)
{
	T *to = (T *)ret;

	for (uint64_t k = 0; k < count; k++)
		to[k] = from_float<T>(values[k]);
}

/* Are stored values those that the device computes with? */
static bool is_same(const struct cuda_backend *cuda, const struct weight_desc *w)
{
	return (w->format == WEIGHT_BF16 && cuda->dtype == DTYPE_BF16) || (w->format == WEIGHT_F16 && cuda->dtype == DTYPE_F16) ||
	    (w->format == WEIGHT_F32 && cuda->dtype == DTYPE_F32);
}

/* Rows [first, first + count) of W at TO, STRIDE elements apart. */
static void decode_rows(const struct cuda_backend *cuda, const struct weight_desc *w, uint64_t first, uint64_t count, char *to,
    uint32_t stride, float *values)
{
	size_t element = element_bytes(cuda), row_bytes = stride * element;
	bool   same = is_same(cuda, w);

	if (same && count) {
		const char *begin = (const char *)weight_row(w, first), *end = (const char *)weight_row(w, first + count - 1);

		ask_for_pages(begin, (size_t)(end - begin) + w->columns * element, MADV_POPULATE_READ);
	}
	for (uint64_t r = first; r < first + count; r++, to += row_bytes) {
		if (same) {
			memcpy(to, weight_row(w, r), w->columns * element);
		} else {
			weight_read_row(w, r, values);
			FOR_DTYPE(cuda, T, store_row<T>(values, w->columns, to));
		}
		memset(to + w->columns * element, 0, (stride - w->columns) * element);
	}
}

/* A matrix on its way; threads take pieces of EACH rows. */
struct upload_job {
	const struct cuda_backend *cuda;
	const struct weight_desc  *w;
	char                      *to;
	uint32_t                   stride;
	uint64_t                   each, pieces;
	std::atomic<uint64_t>      next;
};

static void upload_pieces(struct upload_job *job, struct upload_lane *lane)
{
	size_t   row_bytes = job->stride * element_bytes(job->cuda);
	uint64_t piece;

	if (!lane->failed)
		lane->failed = cudaSetDevice(job->cuda->device);
	while ((piece = job->next.fetch_add(1, std::memory_order_relaxed)) < job->pieces) { /* a ticket: nothing else hangs on it */
		uint64_t first = piece * job->each, count = job->w->rows - first < job->each ? job->w->rows - first : job->each, begin;
		char    *buffer = lane_buffer(lane);

		if (!buffer)
			return;
		begin = clock_now_ns();
		decode_rows(job->cuda, job->w, first, count, buffer, job->stride, lane->values);
		lane->fill_ns += clock_now_ns() - begin;
		lane_send(job->cuda, lane, job->to + first * row_bytes, count * row_bytes);
	}
}

static enum status load_part(struct cuda_backend *cuda, const struct weight_desc *w, char *to, uint32_t stride,
    struct error *error)
{
	struct upload    *upload = cuda->upload;
	size_t            row_bytes = stride * element_bytes(cuda);
	uint64_t          share = w->rows * row_bytes / upload->count / LANE_BUFFERS, each, pieces;
	std::thread       threads[LANES_MAX];
	unsigned          count;
	struct upload_job job = { cuda, w, to, stride, 0, 0, {} };

	if (row_bytes > PIECE_BYTES)
		return error_set(error, STATUS_LIMIT, "%s: a row of %llu values", w->name, (unsigned long long)w->columns);
	share = share < PIECE_LEAST ? (uint64_t)PIECE_LEAST : share < PIECE_BYTES ? share : (uint64_t)PIECE_BYTES;
	each = share / row_bytes ? share / row_bytes : 1;
	pieces = (w->rows + each - 1) / each;
	count = pieces < upload->count ? (unsigned)pieces : upload->count;
	job.each = each;
	job.pieces = pieces;
	if (upload_rows(upload, w->columns))
		return error_set(error, STATUS_NOMEM, "%s: out of memory while it was decoded", w->name);
	for (unsigned t = 1; t < count; t++)
		threads[t] = std::thread(upload_pieces, &job, &upload->lanes[t]);
	upload_pieces(&job, &upload->lanes[0]);
	for (unsigned t = 1; t < count; t++)
		threads[t].join();
	for (unsigned t = 0; t < count; t++)
		if (cuda_check(cuda, upload->lanes[t].failed, "uploading a weight")) {
			if (error)
				*error = cuda->fault_error;
			return cuda->fault;
		}
	return STATUS_OK;
}

enum status load_host_matrix(struct cuda_backend *cuda, struct backend_weight *w, const struct weight_desc *parts, uint32_t count,
    struct error *error)
{
	char       *to = (char *)w->data;
	enum status status = make_lanes(cuda);

	if (status && !cuda->fault)
		return error_set(error, status, "%s: out of memory for uploads", parts[0].name);
	for (uint32_t i = 0; i < count && !status; i++)
		ask_for_pages(parts[i].data, parts[i].bytes, MADV_WILLNEED);
	for (uint32_t i = 0; i < count && !status; i++) {
		status = load_part(cuda, &parts[i], to, w->stride, error);
		to += parts[i].rows * w->stride * element_bytes(cuda);
	}
	if (!status)
		status = upload_settle(cuda);
	if (cuda->fault && error)
		*error = cuda->fault_error;
	return status;
}
