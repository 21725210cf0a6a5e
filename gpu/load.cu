/* load.cu: owns the device's side of loading stored matrices (upload.h): pinned buffers, slots, sides, events, and what each
 * stage took.  Does not own what lies where afterwards (struct weight_layout).  Invariant: a piece is placed by the compute
 * stream after the copy stream brought it, and overwritten by the copy stream after that. */
#include "base/clock.h"
#include "gpu/types.cuh"
#include "gpu/upload.h"

#include <stdlib.h>
#include <thread>

#ifndef LOAD_BUFFER_BYTES /* tests have smaller ones */
#define LOAD_BUFFER_BYTES (4 << 20) /* copies of 2 MB have 87 % of the link's speed, of 4 MB 93 % */
#define LOAD_SLOT_BYTES (32 << 20)
#endif

enum { BUFFER_BYTES = LOAD_BUFFER_BYTES, SLOT_BYTES = LOAD_SLOT_BYTES, SIDES = 2, CLOCKS = 64, LANES_MOST = 12 };

struct load {
	struct cuda_backend  *cuda;
	struct uploader      *uploader;
	struct upload_memory  memory;
	struct backend_weight *w; /* that is being loaded */
	uint8_t    *pinned, *slots;
	cudaEvent_t begun[UPLOAD_LANES_MAX][UPLOAD_BUFFERS], copied[UPLOAD_LANES_MAX][UPLOAD_BUFFERS];
	bool        used[UPLOAD_LANES_MAX][UPLOAD_BUFFERS]; /* a copy was enqueued that nobody has waited for */
	uint64_t    link_ns[UPLOAD_LANES_MAX];
	cudaEvent_t filled[UPLOAD_SLOTS], placed[UPLOAD_SLOTS];
	bool        slot_used[UPLOAD_SLOTS];
	/* Kernels that place pieces: when each began and ended, read when all are taken. */
	cudaEvent_t clock_begin[CLOCKS], clock_end[CLOCKS];
	unsigned    clocks;
	uint64_t    place_ns;
	/* Scales and the like of two matrices, alternately. */
	uint8_t    *sides[SIDES];
	size_t      side_bytes[SIDES];
	cudaEvent_t side_free[SIDES];
	unsigned    next_side;
	cudaEvent_t sent;
};

static uint64_t elapsed_ns(cudaEvent_t begin, cudaEvent_t end)
{
	float ms = 0;

	if (cudaEventElapsedTime(&ms, begin, end) != cudaSuccess) {
		cudaGetLastError(); /* only a figure: launches must not find it */
		return 0;
	}
	return ms > 0 ? (uint64_t)(ms * 1e6) : 0;
}

/* ---- What uploads ask of the device ---- */

static int wait_buffer(void *context, unsigned lane, unsigned buffer)
{
	struct load *load = (struct load *)context;
	cudaError_t  code = cudaSetDevice(load->cuda->device); /* of this thread */

	if (!code && load->used[lane][buffer]) {
		code = cudaEventSynchronize(load->copied[lane][buffer]);
		load->link_ns[lane] += code ? 0 : elapsed_ns(load->begun[lane][buffer], load->copied[lane][buffer]);
		load->used[lane][buffer] = false;
	}
	return code;
}

static int copy_buffer(void *context, unsigned lane, unsigned buffer, uint8_t *to, size_t bytes)
{
	struct load *load = (struct load *)context;
	cudaStream_t copies = load->cuda->copies;
	cudaError_t  code = cudaEventRecord(load->begun[lane][buffer], copies);

	if (!code)
		code = cudaMemcpyAsync(to, load->memory.buffers[lane][buffer], bytes, cudaMemcpyHostToDevice, copies);
	if (!code)
		code = cudaEventRecord(load->copied[lane][buffer], copies);
	load->used[lane][buffer] = !code;
	return code;
}

static int open_slot(void *context, unsigned slot)
{
	struct load *load = (struct load *)context;

	return load->slot_used[slot] ? cudaStreamWaitEvent(load->cuda->copies, load->placed[slot], 0) : cudaSuccess;
}

/* Adds up the clocks of kernels; waits for the last of them. */
static cudaError_t read_clocks(struct load *load)
{
	cudaError_t code = load->clocks ? cudaEventSynchronize(load->clock_end[load->clocks - 1]) : cudaSuccess;

	for (unsigned i = 0; i < load->clocks && !code; i++)
		load->place_ns += elapsed_ns(load->clock_begin[i], load->clock_end[i]);
	load->clocks = 0;
	return code;
}

static int place_slot(void *context, unsigned slot, const struct stored_piece *piece)
{
	struct load         *load = (struct load *)context;
	struct cuda_backend *cuda = load->cuda;
	cudaError_t          code = load->clocks == CLOCKS ? read_clocks(load) : cudaSuccess;
	unsigned             i = load->clocks;

	if (!code)
		code = cudaEventRecord(load->filled[slot], cuda->copies);
	if (!code)
		code = cudaStreamWaitEvent(cuda->stream, load->filled[slot], 0);
	if (!code)
		code = cudaEventRecord(load->clock_begin[i], cuda->stream);
	if (!code)
		code = load->w->layout->place(cuda, load->w, piece);
	if (!code)
		code = cudaEventRecord(load->clock_end[i], cuda->stream);
	if (!code)
		code = cudaEventRecord(load->placed[slot], cuda->stream);
	load->clocks = code ? i : i + 1;
	load->slot_used[slot] = true;
	return code;
}

/* ---- Making ---- */

/* Events that are waited for by threads let them sleep. */
static cudaError_t make_events(struct load *load)
{
	cudaError_t code = cudaEventCreateWithFlags(&load->sent, cudaEventDisableTiming);

	for (unsigned i = 0; i < load->memory.lanes * UPLOAD_BUFFERS && !code; i++) {
		unsigned lane = i / UPLOAD_BUFFERS, buffer = i % UPLOAD_BUFFERS;

		code = cudaEventCreate(&load->begun[lane][buffer]);
		code = code ? code : cudaEventCreateWithFlags(&load->copied[lane][buffer], cudaEventBlockingSync);
	}
	for (unsigned i = 0; i < UPLOAD_SLOTS && !code; i++) {
		code = cudaEventCreateWithFlags(&load->filled[i], cudaEventDisableTiming);
		code = code ? code : cudaEventCreateWithFlags(&load->placed[i], cudaEventDisableTiming);
	}
	for (unsigned i = 0; i < CLOCKS && !code; i++) {
		code = cudaEventCreate(&load->clock_begin[i]);
		code = code ? code : cudaEventCreate(&load->clock_end[i]);
	}
	for (unsigned i = 0; i < SIDES && !code; i++)
		code = cudaEventCreateWithFlags(&load->side_free[i], cudaEventDisableTiming);
	return code;
}

/* As cuda_check, but memory that is not there is no fault of the device. */
static enum status check_memory(struct cuda_backend *cuda, cudaError_t code, const char *what)
{
	if (code != cudaErrorMemoryAllocation || cuda->fault)
		return cuda_check(cuda, code, what);
	cudaGetLastError();
	return STATUS_NOMEM;
}

static enum status make_load(struct cuda_backend *cuda)
{
	const struct upload_device device = { NULL, wait_buffer, copy_buffer, open_slot, place_slot };
	unsigned                   cores = std::thread::hardware_concurrency();
	struct upload_device       actions = device;
	struct load               *load;
	enum status                status;

	if (cuda->load)
		return cuda->fault;
	load = cuda->load = (struct load *)calloc(1, sizeof *load);
	if (!load)
		return STATUS_NOMEM;
	load->cuda = cuda;
	load->memory.lanes = cores < 1 ? 1 : cores < LANES_MOST ? cores : (unsigned)LANES_MOST;
	load->memory.buffer_bytes = BUFFER_BYTES;
	load->memory.slot_bytes = SLOT_BYTES;
	status = check_memory(cuda, cudaHostAlloc((void **)&load->pinned, (size_t)load->memory.lanes * UPLOAD_BUFFERS * BUFFER_BYTES,
	    cudaHostAllocPortable), "pinned memory for loading");
	status = status ? status : check_memory(cuda, cudaMalloc((void **)&load->slots, (size_t)UPLOAD_SLOTS * SLOT_BYTES),
	    "device memory for loading");
	status = status ? status : cuda_check(cuda, make_events(load), "events for loading");
	if (status)
		return status;
	for (unsigned i = 0; i < load->memory.lanes * UPLOAD_BUFFERS; i++)
		load->memory.buffers[i / UPLOAD_BUFFERS][i % UPLOAD_BUFFERS] = load->pinned + (size_t)i * BUFFER_BYTES;
	for (unsigned i = 0; i < UPLOAD_SLOTS; i++)
		load->memory.slots[i] = load->slots + (size_t)i * SLOT_BYTES;
	actions.context = load;
	return upload_create(&actions, &load->memory, &load->uploader);
}

static void drop_event(cudaEvent_t event)
{
	if (event)
		cudaEventDestroy(event);
}

/* What the lanes and the device did, into the totals. */
static void note_work(struct load *load)
{
	struct upload_totals *totals = &load->cuda->uploaded;
	struct upload_work    work = upload_take_work(load->uploader);

	for (unsigned lane = 0; lane < load->memory.lanes; lane++) {
		for (unsigned buffer = 0; buffer < UPLOAD_BUFFERS; buffer++)
			wait_buffer(load, lane, buffer);
		totals->link_ns += load->link_ns[lane];
	}
	read_clocks(load);
	totals->place_ns += load->place_ns;
	totals->fill_ns += work.read_ns;
	totals->wait_ns += work.wait_ns;
	totals->threads = upload_lanes(load->uploader);
	totals->on_device = 1;
}

void load_destroy(struct cuda_backend *cuda)
{
	struct load *load = cuda->load;

	if (!load)
		return;
	cudaStreamSynchronize(cuda->copies);
	cudaStreamSynchronize(cuda->stream);
	if (load->uploader)
		note_work(load);
	upload_free(load->uploader);
	cudaFreeHost(load->pinned);
	cudaFree(load->slots);
	for (unsigned i = 0; i < UPLOAD_LANES_MAX * UPLOAD_BUFFERS; i++) {
		drop_event(load->begun[i / UPLOAD_BUFFERS][i % UPLOAD_BUFFERS]);
		drop_event(load->copied[i / UPLOAD_BUFFERS][i % UPLOAD_BUFFERS]);
	}
	for (unsigned i = 0; i < UPLOAD_SLOTS; i++) {
		drop_event(load->filled[i]);
		drop_event(load->placed[i]);
	}
	for (unsigned i = 0; i < CLOCKS; i++) {
		drop_event(load->clock_begin[i]);
		drop_event(load->clock_end[i]);
	}
	for (unsigned i = 0; i < SIDES; i++) {
		drop_event(load->side_free[i]);
		cudaFree(load->sides[i]);
	}
	drop_event(load->sent);
	free(load);
	cuda->load = NULL;
}

/* ---- Matrices ---- */

/* Memory for scales and the like, which no kernel reads any more when copies get there. */
static cudaError_t take_sides(struct load *load, size_t bytes, unsigned *ret)
{
	unsigned    i = load->next_side % SIDES;
	cudaError_t code;

	*ret = i;
	if (bytes == 0)
		return cudaSuccess;
	load->next_side++;
	if (bytes <= load->side_bytes[i])
		return cudaStreamWaitEvent(load->cuda->copies, load->side_free[i], 0);
	code = cudaStreamSynchronize(load->cuda->stream);
	if (!code)
		code = cudaFree(load->sides[i]);
	load->sides[i] = NULL;
	load->side_bytes[i] = 0;
	if (!code)
		code = cudaMalloc((void **)&load->sides[i], bytes);
	if (!code)
		code = cudaEventRecord(load->side_free[i], load->cuda->stream);
	load->side_bytes[i] = code ? 0 : bytes;
	return code;
}

static enum status load_part(struct load *load, const struct weight_desc *part, uint32_t stack_row, struct error *error)
{
	const struct weight_layout *layout = load->w->layout;
	struct cuda_backend        *cuda = load->cuda;
	struct stored_cut           cut;
	unsigned                    side = 0;
	int                         code = 0;
	enum status status = stored_plan(part, SLOT_BYTES, layout->row_unit, layout->column_unit, &cut, error);

	if (status)
		return status;
	status = check_memory(cuda, take_sides(load, cut.side_total, &side), "device memory for scales");
	if (status == STATUS_NOMEM && !cuda->fault)
		return error_set(error, status, "%s: no memory on device %d for %llu bytes of scales while they are placed", part->name,
		    cuda->device, (unsigned long long)cut.side_total);
	if (!status) {
		uint8_t *straight = layout->straight ? layout->straight(cuda, load->w, part, stack_row) : NULL;

		status = upload_matrix(load->uploader, &cut, stack_row, load->sides[side], straight, &code, error);
		if (code)
			status = cuda_check(cuda, (cudaError_t)code, "loading a weight");
	}
	if (!status && cut.side_total)
		status = cuda_check(cuda, cudaEventRecord(load->side_free[side], cuda->stream), "cudaEventRecord");
	if (cuda->fault && error)
		*error = cuda->fault_error;
	return status;
}

enum status load_matrix(struct cuda_backend *cuda, struct backend_weight *w, const struct weight_desc *parts, uint32_t count,
    struct error *error)
{
	enum status  status = make_load(cuda);
	struct load *load = cuda->load;
	uint32_t     row = 0;

	if (status) {
		load_destroy(cuda);
		if (cuda->fault && error)
			*error = cuda->fault_error;
		return cuda->fault ? status : error_set(error, status, "%s: no memory for loading: %llu MiB of device %d, %llu MiB pinned",
		    parts[0].name, (unsigned long long)UPLOAD_SLOTS * SLOT_BYTES >> 20, cuda->device,
		    (unsigned long long)LANES_MOST * UPLOAD_BUFFERS * BUFFER_BYTES >> 20);
	}
	load->w = w;
	for (uint32_t i = 0; i < count && !status; i++) {
		status = load_part(load, &parts[i], row, error);
		row += (uint32_t)parts[i].rows;
	}
	/* What was sent is there before anything that the compute stream gets from now on. */
	if (!status && (cuda_check(cuda, cudaEventRecord(load->sent, cuda->copies), "cudaEventRecord") ||
	    cuda_check(cuda, cudaStreamWaitEvent(cuda->stream, load->sent, 0), "cudaStreamWaitEvent"))) {
		status = cuda->fault;
		if (error)
			*error = cuda->fault_error;
	}
	load->w = NULL;
	return status;
}
